"""Summary of a language model's files: what it is, what refuses it, and the memory that it needs.

Weights are mapped and checked against their definition, but not loaded: no runtime is opened.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mindspore_serving.core.tasks import task_of
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.catalog import AUTO, OPENVINO, RUNTIMES, TRANSFORMERS
from mindspore_serving.llm.chat.reasoning_formats import find_reasoning_format
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import find_tool_format
from mindspore_serving.llm.checkpoint.gguf.configuration import decoded_bytes, types_of
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf, is_gguf
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.model_files import (
    CONFIG,
    GENERATION_CONFIG,
    find_config,
    read_optional_json,
    read_recommended,
)
from mindspore_serving.llm.checkpoint.packing import is_packed
from mindspore_serving.llm.checkpoint.quantized.methods import (
    Config,
    describe,
    quantization_of,
    read_config,
)
from mindspore_serving.llm.checkpoint.quantized.parts import FormatName
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.descriptions.families.seq2seq import SEQ2SEQ
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.sound_formats import find_sound_format
from mindspore_serving.llm.models import (
    ARCHITECTURES,
    has_encoder,
    is_encoder,
    load_definition,
)
from mindspore_serving.llm.models.dual import find_dual
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.seq2seq import Seq2SeqSpec, is_seq2seq, open_seq2seq, read_spec
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.capacity import cache_block_bytes, longest_sequence
from mindspore_serving.llm.runtimes.default import choose_runtime
from mindspore_serving.llm.runtimes.encoding import open_encoder_model

GENERATION, EMBEDDING = "text-generation", "embedding"
SETTINGS = (CONFIG, GENERATION_CONFIG, "tokenizer_config.json", "chat_template.jinja")
_PARTS = ("scale", "zero")  # of a matrix in this package's quantisation


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """Contents of a language model's files, and what a runtime makes of them.

    `task` is "text-generation", "embedding" or one of `core.tasks.TASKS`. `stored` names the types
    of the weights, `computed` how the runtime holds them; `problem` is why it refuses the model, ""
    if it does not. Memory is in bytes: of the weights, of the keys and values of a token, and of
    the recurrent states of a sequence; 0 if that is unknown.
    """

    architecture: str
    task: str
    runtime: str
    problem: str
    num_parameters: int = 0
    stored: str = ""
    computed: str = ""
    context_length: int = 0
    has_chat_template: bool = False
    tool_format: str = ""
    reasoning_format: str = ""
    takes_images: bool = False
    takes_sounds: bool = False
    sampling: tuple[tuple[str, Any], ...] = ()
    licence: str = ""
    weight_bytes: int = 0
    cache_bytes_per_token: int = 0
    state_bytes_per_sequence: int = 0


def summarize_checkpoint(
    path: str | Path, runtime: str, *, has_accelerator: bool = False
) -> CheckpointSummary:
    """Return the summary of the model in the directory or the GGUF file `path` for `runtime`.

    With `has_accelerator` the runtime computes on one. A model that is refused has a summary too,
    with what could be read of it.
    """
    directory, config = Path(path), dict[str, Any]()
    fields: dict[str, Any] = {"problem": ""}
    try:
        directory = find_gguf(directory) or directory
        runtime = choose_runtime(directory, runtime, EngineConfig())
        config = find_config(directory)
        fields |= _texts(directory, config)
        checkpoint = Checkpoint.open(directory)
        fields |= _weights(checkpoint, runtime, has_accelerator=has_accelerator)
        if _task(config) == GENERATION or has_encoder(config):
            fields |= _limits(directory, config, runtime, has_accelerator=has_accelerator)
        elif find_dual(config) is None:
            fields["runtime"] = TRANSFORMERS
    except ServingError as error:
        fields["problem"] = str(error)
    names = config.get("architectures") or ["unknown"]
    base = {"context_length": _positions(config), "runtime": runtime}
    return CheckpointSummary(architecture=str(names[0]), task=_task(config), **{**base, **fields})


def summarize_config(
    directory: str | Path, runtime: str, *, stored: str, num_bytes: int
) -> CheckpointSummary:
    """Return the summary of a model whose weights, `num_bytes` in files, are not on this machine.

    `directory` has its `SETTINGS`, as far as there are any. The tensors are not checked.
    """
    directory = Path(directory)
    runtime = OPENVINO if runtime == AUTO else runtime
    fields: dict[str, Any] = {"problem": "", "stored": stored, "runtime": runtime}
    config = find_config(directory)
    try:
        fields |= _texts(directory, config)
        options = read_config(directory)
        mode, (name, has_kernels) = _quantization(options)
        fields["stored"] = ", ".join(filter(None, [stored, name]))
        if RUNTIMES[runtime].keeps_integers and (has_kernels or not mode):
            fields["weight_bytes"] = num_bytes
            fields["computed"] = "integers kept" if mode else "as stored"
        if has_encoder(config):
            fields["context_length"] = _positions(config)
        elif is_seq2seq(config):
            fields |= _seq2seq_sizes(
                read_spec(config, read_optional_json(directory / GENERATION_CONFIG))
            )
        elif _task(config) == GENERATION:
            fields |= _sizes(load_definition(config)[0], runtime, has_accelerator=False)
    except ServingError as error:
        fields["problem"] = str(error)
    names = config.get("architectures") or ["unknown"]
    base = {"context_length": _positions(config), "computed": "floats"}
    return CheckpointSummary(architecture=str(names[0]), task=_task(config), **{**base, **fields})


def _task(config: dict[str, Any]) -> str:
    names = config.get("architectures") or [""]
    task = task_of(str(names[0]))
    if is_encoder(config):
        return EMBEDDING if task in ("", "feature-extraction", "fill-mask") else task
    return GENERATION if names[0] in (*ARCHITECTURES, *SEQ2SEQ) or not task else task


def _positions(config: dict[str, Any]) -> int:
    """Return the context length in config.json, for a model that is refused; 0 without one."""
    inner = config.get("text_config")
    length = (inner if isinstance(inner, dict) else config).get("max_position_embeddings")
    return length if type(length) is int else 0


def _texts(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields about prompts and answers.  Raises StartError for a broken file."""
    template = ChatTemplate.open(directory)
    source = template.source if template else ""
    return {
        "has_chat_template": template is not None,
        "tool_format": find_tool_format(source) if source else "",
        "reasoning_format": find_reasoning_format(source),
        "takes_images": find_prompt_format(config) is not None,
        "takes_sounds": find_sound_format(config) is not None,
        "sampling": tuple(read_recommended(directory).items()),
    }


def _limits(
    directory: Path, config: dict[str, Any], runtime: str, *, has_accelerator: bool
) -> dict[str, Any]:
    """Check the tensors against the definition; return the fields that follow from its sizes.

    Raises StartError for a model that is not supported, or does not fit its config.json.
    """
    if has_encoder(config):
        return {"context_length": open_encoder_model(directory, EngineConfig()).max_model_len}
    if is_seq2seq(config):
        return _seq2seq_sizes(open_seq2seq(directory)[1])
    return _sizes(open_definition(directory)[1], runtime, has_accelerator=has_accelerator)


def _seq2seq_sizes(spec: Seq2SeqSpec) -> dict[str, Any]:
    """Return the fields that follow from the sizes of an encoder and a decoder, in f32."""
    return {
        "context_length": 2 * spec.max_positions,
        "cache_bytes_per_token": spec.token_bytes,
    }


def _sizes(spec: ModelSpec, runtime: str, *, has_accelerator: bool) -> dict[str, Any]:
    """Return the fields that follow from the sizes of a model that generates."""
    engine_config = EngineConfig()
    width = _width(runtime, has_accelerator=has_accelerator)
    row, device = RUNTIMES[runtime], "accelerator" if has_accelerator else "cpu"
    num_latent = row.num_latent if row.keeps_latent_on in ("", device) else 0
    block_bytes = cache_block_bytes(engine_config, spec, width, num_latent=num_latent)
    return {
        "context_length": longest_sequence(engine_config, spec),
        "cache_bytes_per_token": block_bytes // engine_config.block_size,
        "state_bytes_per_sequence": spec.state.slot_bytes if spec.state else 0,
    }


def _weights(checkpoint: Checkpoint, runtime: str, *, has_accelerator: bool) -> dict[str, Any]:
    """Return the fields about weights.  Raises StartError for an unsupported quantisation."""
    sizes: dict[str, int] = {}
    count = 0
    for name in checkpoint.names():
        if not _is_part(checkpoint, name):
            dtype, shape = checkpoint.stored(name).dtype, checkpoint.shape(name)
            count += prod(shape)
            sizes[dtype] = sizes.get(dtype, 0) + prod(shape)
    types = ", ".join(sorted(sizes, key=lambda dtype: -sizes[dtype]))
    mode, (stored, has_kernels) = _quantization(checkpoint.config)
    num_bytes, licence = checkpoint.num_bytes, ""
    if is_gguf(checkpoint.directory):
        file = open_gguf(checkpoint.directory)
        types, num_bytes = f"GGUF, {types_of(file)}", decoded_bytes(file)
        licence = str(file.metadata.get("general.license") or "")
    elif stored:
        types = f"{stored}, {types}"
    width = _width(runtime, has_accelerator=has_accelerator)
    is_kept = RUNTIMES[runtime].keeps_integers and (has_kernels or not mode)
    widened = f"floats of {8 * width} bits"
    return {
        "num_parameters": count,
        "stored": types,
        "computed": ("integers kept" if mode else "as stored") if is_kept else widened,
        "weight_bytes": num_bytes if is_kept else width * count,
        "licence": licence,
    }


def _quantization(config: Config) -> tuple[str, FormatName]:
    """Return the mode of quantised weights, "" for floats, and the format's name with kernels."""
    mode = quantization_of(config).get("mode")
    if mode:  # of this package, or a GGUF file
        return str(mode), FormatName(str(mode))
    stored = describe(config)
    return stored.text, stored


def _is_part(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether a tensor has the scales or the zero points of a packed matrix."""
    stem, _, leaf = name.rpartition(".")
    return leaf in _PARTS and checkpoint.has(stem) and is_packed(checkpoint.stored(stem).dtype)


def _width(runtime: str, *, has_accelerator: bool) -> int:
    """Return the bytes of a number in the cache of `runtime`, and of a widened weight."""
    return 2 if RUNTIMES[runtime].keeps_integers or has_accelerator else 4
