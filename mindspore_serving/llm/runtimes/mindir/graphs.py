"""Loaded files of an exported decoder, compiled once for all shapes, with one copy of the weights.

Compiling and running hold the MindIR backend's lock of the process.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mindspore_serving.backends.mindir import LOCK  # one for the process
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.layout import Layout
from mindspore_serving.llm.runtimes.mindir.cache import F32, I32, GraphCall, calls
from mindspore_serving.llm.runtimes.mindir.library import mindspore


def dynamic(shape: Sequence[int | None], dtype: Any) -> Any:
    """Return a tensor that describes an input's shape to MindSpore; None is any size."""
    return mindspore.Tensor(shape=list(shape), dtype=dtype)


def decoder_inputs(spec: ModelSpec, count: int | None, batch: int | None = None) -> list[Any]:
    """Return the inputs of `DecoderCell`: `batch` sequences of `count` new tokens, None for any."""
    i32, f32 = mindspore.int32, mindspore.float32
    tokens = dynamic((batch, count), i32)
    hidden = dynamic((batch, count, spec.hidden_size), f32)
    cache = dynamic((spec.num_kv_heads, batch, None, spec.head_dim), f32)
    return [
        tokens if spec.is_first else hidden,
        dynamic((batch, count), i32),
        dynamic((None,), i32),
        dynamic((batch, count, None), f32),
        *[cache] * (2 * len(spec.layers)),
    ]


def run_graph(graph: Callable[..., Any], inputs: Sequence[I32 | F32]) -> tuple[F32, F32, F32]:
    """Run a `DecoderCell`; return its logits or hidden states, new keys and new values.

    Raises ServingError.
    """
    with LOCK:
        try:
            outputs = graph(*[mindspore.Tensor.from_numpy(array) for array in inputs])
            logits, keys, values = (output.asnumpy() for output in outputs)
        except Exception as error:  # MindSpore raises every kind
            raise ServingError(error_text(error)) from error
    return logits, keys, values


class Graphs:
    """`DenseGraphs` of prefill.mindir and decode.mindir of a directory."""

    def __init__(self, directory: Path, spec: ModelSpec) -> None:
        """Load both files.  Raises StartError naming a file that is missing or cannot be loaded."""
        with LOCK:
            self._prefill = _load(directory, "prefill")
            self._decode = _load(directory, "decode")
            share_weights(self._prefill, self._decode)
            # Without this each new shape would be compiled.
            self._prefill.set_inputs(*decoder_inputs(spec, None))
            self._decode.set_inputs(*decoder_inputs(spec, 1))

    def calls(self, layout: Layout) -> Iterable[GraphCall]:
        return calls(layout)

    def run(self, inputs: Sequence[I32 | F32]) -> tuple[F32, F32, F32]:
        return run_graph(self._decode if inputs[0].shape[1] == 1 else self._prefill, inputs)


def _load(directory: Path, name: str) -> Any:
    paths = [directory / f"{name}.mindir", directory / f"{name}_graph.mindir"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise StartError(
            f"{directory} has no {name}.mindir; make such a directory from a checkpoint with "
            "python -m mindspore_serving.llm.export_mindir"
        )
    return load_graph(path)


def load_graph(path: Path) -> Any:
    """Load a MindIR file as a cell.  Raises StartError."""
    try:
        return mindspore.nn.GraphCell(mindspore.load(str(path)))
    except Exception as error:  # MindSpore raises every kind
        raise StartError(f"{path} cannot be loaded: {error_text(error)}") from error


def share_weights(first: Any, second: Any) -> None:
    """Let both graphs use the weights of the first; call it before either runs."""
    weights = first.parameters_dict()
    for name, parameter in second.parameters_dict().items():
        weight = weights.get(name)
        if weight is None or weight.shape != parameter.shape:
            raise StartError(f"prefill.mindir and decode.mindir differ in {name}: export again")
        parameter.set_data(weight)
