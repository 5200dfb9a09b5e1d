"""Opening of a model together with its draft model, or its prediction head.

A draft model is a smaller one with the same tokenizer, whose draft tokens the model verifies.  A
prediction head has the block tables of its model, and a cache of as many blocks.
"""

from dataclasses import replace
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import RUNTIMES
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf, is_gguf
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.quantized.methods import quantization_of, read_config
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.prediction import eagle_ids, head_spec
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.part import open_eagle
from mindspore_serving.llm.runtimes import open_head, open_runner
from mindspore_serving.llm.step import Runner
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer, has_tokenizer

_SHOWN = 3  # tokens that differ, in an error


def open_runners(
    directory: Path, runtime: str, config: EngineConfig, tokenizer: Tokenizer | None
) -> tuple[Runner, Runner | None]:
    """Open the model in `directory`, and its draft model or prediction head if `config` has one.

    Raises StartError as `open_runner`, or if the two do not fit each other.
    """
    eagle = open_eagle(config)
    if config.mtp or eagle is not None:
        return _open_with_head(directory, runtime, config, eagle)
    if config.draft is None:
        return open_runner(directory, runtime, config), None
    draft = find_gguf(Path(config.draft)) or Path(config.draft)
    if not draft.is_dir() and not is_gguf(draft):
        raise StartError(f"draft is {str(draft)!r}, expected a model's directory or a GGUF file")
    specs = _specs(directory, draft)
    _check_vocabularies(draft, tokenizer, specs)
    model_config, draft_config = _divided(config, draft, specs)
    runner = open_runner(directory, runtime, model_config)
    try:
        draft_config = _with_as_many_tokens(draft_config, runner, specs)
        return runner, _open_draft(draft, runtime, draft_config, runner)
    except BaseException:
        runner.close()
        raise


def _open_with_head(
    directory: Path, runtime: str, config: EngineConfig, eagle: Checkpoint | None
) -> tuple[Runner, Runner | None]:
    if not RUNTIMES[runtime].opens_head:
        known = ", ".join(name for name, row in RUNTIMES.items() if row.opens_head)
        raise StartError(f"runtime {runtime!r} computes no EAGLE-3 heads, expected one of {known}")
    if is_gguf(directory) and eagle is None:
        raise StartError(
            f"mtp is True, but {directory} is a GGUF file, whose prediction head is not read: "
            "leave mtp out, or serve the directory of safetensors"
        )
    model = load_definition(find_config(directory))[0]
    head = model
    if eagle is not None:
        head = load_definition({**eagle.config, "architectures": ["LlamaForCausalLM"]})[0]
    specs = model, head_spec(head)
    longest = head.max_position_embeddings
    memory, sizes = config.kv_cache_memory, [_size(spec) for spec in specs]
    if memory is not None:
        memory = max(1, memory - memory * sizes[1] // sum(sizes))
    runner = open_runner(directory, runtime, replace(config, kv_cache_memory=memory))
    try:
        # Enough for the blocks of the model, whose tables the head shares.
        memory = runner.num_blocks * runner.cache_memory.block_bytes * sizes[1] // sizes[0]
        head_config = replace(
            config, adapters={}, max_loras=0, max_images=0, max_audios=0, prefix_cache_dir=None,
            prefix_cache_store="", deterministic=False,
            max_model_len=min(longest, runner.max_model_len),
            kv_cache_memory=memory + memory // 8,
        )  # fmt: skip
        opened = open_head(directory, runtime, head_config)
        opened.is_head = True
        opened.draft_ids = None if eagle is None else eagle_ids(eagle)
        return runner, opened
    except BaseException:
        runner.close()
        raise


def _open_draft(draft: Path, runtime: str, config: EngineConfig, large: Runner) -> Runner:
    try:
        runner = open_runner(draft, runtime, config)
    except StartError as error:
        raise StartError(f"draft {str(draft)!r}: {error}") from error
    if runner.block_size != large.block_size:
        sizes = f"{runner.block_size} tokens, and those of the model {large.block_size}"
        runner.close()
        raise StartError(f"draft {str(draft)!r} has cache blocks of {sizes}, expected the same")
    return runner


def _specs(directory: Path, draft: Path) -> tuple[ModelSpec, ModelSpec]:
    """Return the specs of the model and its draft model.

    Raises StartError if one has a recurrent state: memory is divided by blocks alone.
    """
    large, small = (load_definition(find_config(path))[0] for path in (directory, draft))
    for name, spec in (("the model", large), ("draft", small)):
        if spec.state is not None:
            raise StartError(
                f"draft is {str(draft)!r}, but {name} ({spec.architecture_name}) has layers with a "
                "state, whose slots it does not share; leave draft out: prompt lookup works"
            )
    return large, small


def _check_vocabularies(
    draft: Path, tokenizer: Tokenizer | None, specs: tuple[ModelSpec, ModelSpec]
) -> None:
    """Raise StartError unless both models have the same tokens."""
    if tokenizer is None or not has_tokenizer(draft):
        sizes = tuple(spec.vocab_size for spec in specs)
        if sizes[0] != sizes[1]:
            raise StartError(
                f"draft {str(draft)!r} has {sizes[1]} tokens and the model {sizes[0]}, and one of "
                "them has no tokenizer to compare: expected a draft with the same tokenizer"
            )
        return
    vocabulary, draft_vocabulary = tokenizer.vocabulary(), Tokenizer.open(draft).vocabulary()
    if vocabulary == draft_vocabulary:
        return
    wrong = sorted(dict(vocabulary.items() ^ draft_vocabulary.items()))
    shown = ", ".join(
        f"{token!r} (model: {vocabulary.get(token)}, draft: {draft_vocabulary.get(token)})"
        for token in wrong[:_SHOWN]
    )
    raise StartError(
        f"draft {str(draft)!r} has another tokenizer: {len(wrong)} tokens differ, as {shown}; "
        "expected a smaller model of the same family"
    )


def _divided(
    config: EngineConfig, draft: Path, specs: tuple[ModelSpec, ModelSpec]
) -> tuple[EngineConfig, EngineConfig]:
    """Return the options of the model and of its draft model.

    The cache's memory is divided so that both hold the same number of tokens.
    """
    large, small = specs
    longest = config.max_model_len or large.max_position_embeddings
    is_quantised = is_gguf(draft) or quantization_of(read_config(draft))
    draft_config = replace(
        config,
        draft=None,
        adapters={},
        max_loras=0,
        max_images=0,
        max_audios=0,
        prefix_cache_dir=None,
        prefix_cache_store="",
        deterministic=False,  # draft tokens are verified, so they may differ
        max_model_len=min(longest, small.max_position_embeddings),
        quantization=None if is_quantised else config.quantization,
    )
    if config.kv_cache_memory is None:
        return config, draft_config
    sizes = [_size(spec) for spec in specs]
    draft_memory = config.kv_cache_memory * sizes[1] // sum(sizes)
    model_config = replace(config, kv_cache_memory=max(1, config.kv_cache_memory - draft_memory))
    return model_config, replace(draft_config, kv_cache_memory=max(1, draft_memory))


def _with_as_many_tokens(
    config: EngineConfig, large: Runner, specs: tuple[ModelSpec, ModelSpec]
) -> EngineConfig:
    """Return the draft model's options with a default cache that holds the tokens of `large`."""
    memory = large.num_blocks * large.cache_memory.block_bytes
    if config.kv_cache_memory is not None or not memory:
        return config
    large_size, draft_size = map(_size, specs)
    return replace(config, kv_cache_memory=-(-memory * draft_size // large_size))


def _size(spec: ModelSpec) -> int:
    """Return what a token takes in the cache, relative to other models."""
    return len(spec.attention_layers) * spec.kv_size
