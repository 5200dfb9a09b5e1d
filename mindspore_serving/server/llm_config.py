"""Configuration files of llm-serving, converted to a model to serve and an address.

`llm_config_source` reads the files; `docs/llm_serving.md` has the table of their keys.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.file_check import why_no_model
from mindspore_serving.hub.resolve import resolve
from mindspore_serving.llm.runtimes.mindir.cut import find_model
from mindspore_serving.server.config import ServableStartConfig
from mindspore_serving.server.llm_config_source import Block, Blocks, read_blocks

DEFAULT_RUNTIME, MINDIR_RUNTIME, AGENTS_RUNTIME = "openvino", "mindir", "agents"
PAGED_LENGTH = 4096  # default tokens of a sequence with page_attention
_MINDIR = ("prefill.mindir", "decode.mindir")
_TOKENS_IN_A_STEP = 512
_USED = {
    "model_path": ("prefill_model", "decode_model"),
    "model_config": (
        "model_name",
        "seq_length",
        "max_generate_length",
        "decode_batch_size",
        "page_attention",
        "backend",
        "model_cfg_path",
        "runtime",
        "options",
    ),
    "serving_config": ("server_ip", "server_port", "agent_ip", "agent_ports", "stream_form"),
    "pa_config": ("decode_seq_length",),
}


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """A language model to serve.

    Attributes:
        name: name for clients.
        directory: directory of the model, with config.json.
        runtime: runtime that computes it.
        options: options of `EngineConfig`.
        ip, port: address on which the server listens.
        form: format of streams; default "r21" for serving_config.py, "bare" for yaml files.
        ranks: number of processes over which the model is split.
        agents: "ip:port" of each agent in the file.
        unused: keys of the file without effect here, as "block.key".
    """

    name: str
    directory: Path
    runtime: str
    options: Mapping[str, Any]
    ip: str
    port: int
    form: Literal["r21", "bare"]
    ranks: int
    agents: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    def to_start_config(self) -> ServableStartConfig:
        """Convert to a config for `start_servables`.  Raises InvalidInputs for an invalid name."""
        return ServableStartConfig(
            str(self.directory.parent),
            self.directory.name,
            alias=self.name,
            llm_options={"runtime": self.runtime, **self.options},
        )


def read_llm_config(path: str | Path) -> LlmConfig:
    """Read a configuration file: yaml, or a serving_config.py, which is parsed but not run.

    Raises StartError naming the file and the missing or invalid key.
    """
    source = Path(path).resolve()
    try:
        return _to_config(read_blocks(source), source)
    except InvalidInputs as error:
        raise StartError(f"{source}: {error}") from None


def _to_config(blocks: Blocks, source: Path) -> LlmConfig:
    model, serving = _block(blocks, "model_config"), _block(blocks, "serving_config")
    paths = _block(blocks, "model_path")
    directory, runtime = _find_model(paths, model, source.parent)
    ranks = 1 if model.get("backend") == "kbk" else len(_paths(paths, "prefill_model"))
    options = _options(model, _block(blocks, "pa_config"))
    if ranks > 1 and runtime != AGENTS_RUNTIME:
        options = {"pipeline_parallel": ranks, **options}
    ports = serving.get("agent_ports") or []
    if not isinstance(ports, list):
        raise InvalidInputs(f"serving_config.agent_ports is {ports!r}, expected a list of ports")
    agent_ip = serving.get("agent_ip") or "localhost"
    return LlmConfig(
        name=_text(model, "model_config.model_name"),
        directory=directory,
        runtime=runtime,
        options=options,
        ip=str(serving.get("server_ip") or "localhost"),
        port=_int(serving.get("server_port"), "serving_config.server_port"),
        form=_form(serving.get("stream_form", "r21" if source.suffix == ".py" else "bare")),
        ranks=ranks,
        agents=tuple(f"{agent_ip}:{port}" for port in ports),
        unused=_unused(blocks),
    )


def _find_model(paths: Block, model: Block, base: Path) -> tuple[Path, str]:
    """Return the model's directory, and the runtime for its files.  Raises InvalidInputs."""
    configured = _model_path(paths, model, base)
    path = Path(os.path.normpath(base / resolve(configured, base=str(base))))
    directory = path if path.is_dir() else path.parent
    if why := why_no_model(path):
        raise InvalidInputs(f"the model is {configured!r}, which {why}")
    if not (directory / "config.json").is_file():
        raise InvalidInputs(
            f"the model is {configured!r}, but {directory} has no config.json; expected the "
            "directory of a Hugging Face model, or one that "
            "`python -m mindspore_serving.llm.export_mindir` has written, or a file in such a "
            "directory"
        )
    parents = (directory, directory / "rank_0")  # of an unsplit model, or of the first rank
    has_graphs = any(all((parent / name).is_file() for name in _MINDIR) for parent in parents)
    runtime = MINDIR_RUNTIME if has_graphs else DEFAULT_RUNTIME
    if path.suffix == ".mindir" and not has_graphs:
        missing = " and ".join(_MINDIR)
        raise InvalidInputs(f"the model is {configured!r}, but {directory} has no {missing}")
    return directory, str(model.get("runtime") or runtime)


def _model_path(paths: Block, model: Block, base: Path) -> str:
    if model.get("backend") == "kbk":
        return _text(model, "model_config.model_cfg_path")
    prefill, decode = (_paths(paths, name) for name in ("prefill_model", "decode_model"))
    if not prefill:
        raise InvalidInputs("model_path.prefill_model is missing: the path of the model")
    if decode and len(decode) != len(prefill):
        raise InvalidInputs(
            f"model_path has {len(prefill)} prefill_model and {len(decode)} decode_model, expected "
            "one per rank"
        )
    if len(prefill) == 1:
        return prefill[0]
    ranks = ([str(base / path) for path in files] for files in (prefill, decode or prefill))
    try:
        return str(find_model(*ranks))
    except StartError as error:
        raise InvalidInputs(f"model_path: {error}") from None


def _paths(block: Block, name: str) -> list[str]:
    paths = block.get(name) or []
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidInputs(f"model_path.{name} is {paths!r}, expected a list of paths")
    return paths


def _options(model: Block, paging: Block) -> dict[str, Any]:
    """Return engine options: max_model_len and limits of a batch from the file, and its `options`.

    max_model_len is the smallest length in the file, max_num_seqs its largest batch size.
    """
    options: dict[str, Any] = {}
    lengths = _ints(model.get("seq_length"), "model_config.seq_length")[-1:]
    lengths += _ints(model.get("max_generate_length"), "model_config.max_generate_length")
    if model.get("page_attention"):
        longest = paging.get("decode_seq_length", PAGED_LENGTH)
        lengths += _ints(longest, "pa_config.decode_seq_length")
    if lengths:
        options["max_model_len"] = min(lengths)
    batches = _ints(model.get("decode_batch_size"), "model_config.decode_batch_size")
    if batches:
        options["max_num_seqs"] = max(batches)
        options["max_num_batched_tokens"] = max(_TOKENS_IN_A_STEP, *batches)
    return {**options, **_block(model, "options")}


def _form(value: object) -> Literal["r21", "bare"]:
    if value not in ("r21", "bare"):
        raise InvalidInputs(f"serving_config.stream_form is {value!r}, expected 'r21' or 'bare'")
    return "r21" if value == "r21" else "bare"


def _unused(blocks: Blocks) -> tuple[str, ...]:
    names = []
    for block, keys in blocks.items():
        known = _USED.get(block, ())
        inner = keys if isinstance(keys, dict) else {}
        names += [f"{block}.{key}" for key in inner if key not in known and inner[key] is not None]
    return tuple(names)


def _block(blocks: Mapping[str, Any], name: str) -> Block:
    block = blocks.get(name)
    if block is None:
        return {}
    if not isinstance(block, dict):
        raise InvalidInputs(f"{name} is {block!r}, expected keys and values")
    return block


def _text(block: Block, name: str) -> str:
    text = block.get(name.rpartition(".")[2])
    if not isinstance(text, str) or not text:
        raise InvalidInputs(f"{name} is {text!r}, expected a text")
    return text


def _int(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputs(f"{name} is {value!r}, expected an int > 0")
    return value


def _ints(value: object, name: str) -> list[int]:
    """Convert an int or a list of ints to a list; None gives an empty list."""
    if value is None:
        return []
    return [_int(item, name) for item in (value if isinstance(value, list) else [value])]
