"""MindIR files of llm-serving, found and checked: prefill and decode, with their cache inside.

MindFormers exports them with page attention.  Inputs have the name behind the last ":" of the name
in the file.  Knows no MindSpore.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.mindir_signature import GraphFile, read_graph_file
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError

TOKENS, LENGTHS = "input_ids", "batch_valid_length"
SLOTS, TABLES = "slot_mapping", "block_tables"
_NAMES = {"tokens": TOKENS}  # other names of an input
_INPUTS = {"prefill": {TOKENS, LENGTHS, SLOTS}, "decode": {TOKENS, LENGTHS, SLOTS, TABLES}}
_UNPAGED = {"batch_index", "zactivate_len"}  # inputs of llm-serving's files without page attention
_CACHE = ("key_cache", "value_cache")  # endings of the names of parameters
_ASCEND_ONLY = {
    *("ReshapeAndCache", "PagedAttention", "PagedAttentionMask"),
    *("FlashAttentionScore", "PromptFlashAttention", "IncreFlashAttention"),
}


@dataclass(frozen=True, slots=True)
class PagedFile:
    """File of one graph, with its inputs by name, in order."""

    path: Path
    inputs: Mapping[str, TensorSpec]
    ascend_operators: tuple[str, ...]  # those that no CPU computes

    def size(self, name: str, axis: int) -> int | None:
        """Return the size of an input, None for any."""
        shape = self.inputs[name].shape
        size = shape[axis] if shape is not None and axis < len(shape) else -1
        return size if size >= 0 else None


@dataclass(frozen=True, slots=True)
class PagedFiles:
    """Prefill and decode of one model, whose cache has `num_blocks` of `block_size` tokens."""

    prefill: PagedFile
    decode: PagedFile
    num_blocks: int
    block_size: int


def find_paged_files(directory: Path) -> PagedFiles | None:
    """Return the files of llm-serving in `directory` or directly below; None if there are none.

    MindFormers writes both graphs with the same name, to two directories.

    Raises StartError: only one of both, several, other inputs, no cache inside.
    """
    graphs: dict[Path, GraphFile] = {}
    errors = []
    for path in sorted((*directory.glob("*.mindir"), *directory.glob("*/*.mindir"))):
        try:
            graphs[path] = read_graph_file(_source(path), str(path))
        except StartError as error:
            errors.append(error)
    paged = {path: graph for path, graph in graphs.items() if _names(graph) & {SLOTS, *_UNPAGED}}
    if not paged:
        return None
    if errors:
        raise errors[0]
    files = {kind: _only(directory, kind, paged) for kind in _INPUTS}
    num_blocks, block_size = _cache_shape(files["decode"], paged[files["decode"]])
    if num_blocks < 2:
        raise StartError(
            f"{files['decode']} has {num_blocks} blocks, expected 2 at least: one is reserved"
        )
    prefill, decode = (_paged_file(path, paged[path]) for path in files.values())
    return PagedFiles(prefill, decode, num_blocks, block_size)


def _source(path: Path) -> ModelSource:
    return ModelSource(DeclaredModel(path.name, "mindir", (path.name,)), (str(path),))


def _names(graph: GraphFile) -> set[str]:
    return {_NAMES.get(spec.name, spec.name) for spec in graph.signature.inputs}


def _only(directory: Path, kind: str, graphs: Mapping[Path, GraphFile]) -> Path:
    """Return the one file with the inputs of `kind`.  Raises StartError."""
    expected = _INPUTS[kind]
    matching = [path for path, graph in graphs.items() if _names(graph) == expected]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(str(path.relative_to(directory)) for path in matching)
        raise StartError(f"{directory} has {len(matching)} {kind} files, {names}: keep one")
    inputs = "; ".join(f"{path.name} has {sorted(_names(graph))}" for path, graph in graphs.items())
    raise StartError(
        f"{directory} has no {kind} file, which has the inputs {sorted(expected)}: {inputs}; "
        "export the model by MindFormers with use_past, page attention (block_size, num_blocks) "
        "and both graphs"
    )


def _cache_shape(path: Path, graph: GraphFile) -> tuple[int, int]:
    for parameter in graph.graph.parameter:
        if is_cache(parameter.name) and len(parameter.dims) > 2:
            return parameter.dims[0], parameter.dims[1]
    raise StartError(
        f"{path} has no parameter whose name ends with key_cache, of shape [blocks, tokens in a "
        "block, ...]: export it with page attention, which keeps keys and values inside"
    )


def is_cache(name: str) -> bool:
    """Return whether a parameter of this name has keys or values."""
    return name.endswith(_CACHE)


def _paged_file(path: Path, graph: GraphFile) -> PagedFile:
    inputs = {_NAMES.get(spec.name, spec.name): spec for spec in graph.signature.inputs}
    return PagedFile(path, inputs, tuple(sorted(graph.operators & _ASCEND_ONLY)))
