"""Networks that the operator's code makes: parts that those of MindSpore and PyTorch share."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import getsourcefile
from typing import Any

from mindspore_serving import log
from mindspore_serving.backends.arguments import named_leaves, output_names
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import check_files, error_text, warm_up
from mindspore_serving.core.user_code import where
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError


def make_network(source: ModelSource, base: type, shown: str) -> Any:
    """Call the code of `source`, which returns a `base`.  Raises StartError with its line."""
    factory, arguments = source.spec.factory, source.spec.arguments
    assert factory is not None
    try:
        network = factory(**arguments)
    except Exception as error:
        directory = os.path.dirname(os.path.abspath(getsourcefile(factory) or ""))
        raise failure(
            source,
            f"{_call(source)} raised {type(error).__name__}{where(error, directory)}: "
            f"{error_text(error)}",
        ) from error
    if not isinstance(network, base):
        raise failure(
            source, f"{_call(source)} returned a {type(network).__name__}, expected a {shown}"
        )
    if source.paths:
        check_files(source)
    else:
        log.warning(
            "Network '%s' has no file of weights: it has the values that its code gives it",
            source.spec.key,
        )
    return network


def _call(source: ModelSource) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in source.spec.arguments.items())
    return f"{getattr(source.spec.factory, '__name__', '')}({shown})"


def failure(source: ModelSource, problem: str) -> StartError:
    """Return the error for a network that cannot be served."""
    return StartError(f"Load model '{source.spec.key}' failed: {problem}")


def check_single(source: ModelSource) -> None:
    """Raise StartError if `source` has several files: a network has one file of weights."""
    if len(source.paths) > 1:
        raise failure(source, f"it has {len(source.paths)} files of weights, expected one")


def described(
    source: ModelSource,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    call: Callable[[Sequence[Array]], Any],
    to_array: Callable[[Any], Array],
) -> Signature:
    """Return the signature of a network after a run on zeros, which names and counts its outputs.

    Without shapes it does not run, and `outputs` are those of its type hints.
    """
    names: list[str] = []

    def run(arrays: Sequence[Array]) -> list[Array]:
        leaves = list(named_leaves(call(arrays)))
        names[:] = output_names(leaves)
        return [to_array(leaf) for _, leaf in leaves]

    signature = warm_up(run, Signature(tuple(inputs), tuple(outputs)), source, source.spec.key)
    if not signature.outputs:
        raise failure(source, _why_unknown(inputs))
    if len(names) != len(signature.outputs):
        return signature  # it has not run
    shapes = _batch_shapes(inputs, run)
    specs = (
        replace(spec, name=name, shape=spec.shape if shape is None else shape)
        for spec, name, shape in zip(
            signature.outputs, names, shapes or [None] * len(names), strict=True
        )
    )
    return replace(signature, outputs=tuple(specs))


def _batch_shapes(
    inputs: Sequence[TensorSpec], run: Callable[[Sequence[Array]], list[Array]]
) -> list[tuple[int, ...] | None]:
    """Return the shapes of outputs, -1 for the batch, by runs of one and of two instances.

    [] if more than the first axes of the inputs are open, or a run fails.
    """
    tensors = [spec for spec in inputs if not spec.is_argument]
    if not all(
        spec.shape and spec.shape[0] < 0 and min(spec.shape[1:], default=0) >= 0 for spec in tensors
    ):
        return []
    results = []
    for count in (1, 2):
        arrays = [
            spec.zeros(spec.shape if spec.is_argument else (count, *(spec.shape or ())[1:]))
            for spec in inputs
        ]
        try:
            results.append(run([array for array in arrays if array is not None]))
        except StageFailed:
            return []
    return [
        tuple(-1 if a != b else a for a, b in zip(first.shape, second.shape, strict=True))
        if first.ndim == second.ndim
        else None
        for first, second in zip(*results, strict=True)
    ]


def _why_unknown(inputs: Sequence[TensorSpec]) -> str:
    """Return why it is unknown what a network returns, and what to do."""
    names = [spec.name for spec in inputs if spec.shape is None or spec.dtype is None]
    if not names:
        return (
            "it does not run with sizes of 1 for its open dimensions, as the log says: describe "
            "sizes that it accepts, or its result by a type hint such as -> Tensor"
        )
    return (
        f"the shapes of its inputs {', '.join(names)} are unknown, and so is what it returns: "
        f"describe them by serve --inputs '{names[0]}=float32[-1,3,224,224]', inputs= of "
        'declare_model, or in the code by a type hint Annotated[Tensor, "float32[-1,3,224,224]"]'
    )
