"""Arguments of `call` in stage functions: one instance, or a list of them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from mindspore_serving.core.value import Value, to_value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed

_Output = TypeVar("_Output")
Run: TypeAlias = Callable[[list[tuple[Value, ...]]], Sequence[Sequence[_Output]]]


def call_instances(args: Sequence[Any], run: Run[_Output] | None, label: str) -> Any:
    """Run the instances of `args`; return the outputs of one, or a tuple of outputs for each.

    `run` gets one tuple of values per instance and returns the outputs of each; None if nothing can
    be run in this process.  Errors begin with `label`.  Raises ServingError.
    """
    if not args:
        raise _failed(
            label,
            "no inputs provided, the inputs can be call(x1, x2) for one instance or "
            "call([[x1, x2], [x1, x2]]) for several instances",
        )
    if len(args) == 1 and isinstance(args[0], list | tuple):
        return tuple(_run(args[0], run, label))
    (outputs,) = _run([args], run, label)
    return outputs[0] if len(outputs) == 1 else outputs


def _run(
    instances: Sequence[Any], run: Run[_Output] | None, label: str
) -> list[tuple[_Output, ...]]:
    if not instances:
        raise _failed(label, "Input instances count is 0")
    for index, instance in enumerate(instances):
        if not isinstance(instance, list | tuple):
            raise _failed(
                label,
                "inputs format invalid, one list or tuple argument is a list of instances, "
                f"each a list or tuple of inputs, but instance {index} is {type(instance)}",
            )
    if run is None:
        raise _failed(
            label,
            "it may be called only inside a stage function, which runs in a worker of the server",
        )
    try:
        values = [tuple(to_value(value) for value in instance) for instance in instances]
        return [tuple(outputs) for outputs in run(values)]
    except ServingError as error:
        raise type(error)(f"{label} failed: {error}") from error
    except Exception as error:
        raise StageFailed(f"{label} failed: {error}") from error


def _failed(label: str, reason: str) -> InvalidInputs:
    return InvalidInputs(f"{label} failed: {reason}")
