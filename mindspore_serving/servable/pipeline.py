"""Pipelines of versions 1.3 and 1.4: a method whose one stage calls methods of other servables.

Deprecated since 1.5; see `servable_method` for stages and calls that replace them.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.value import to_value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import (
    as_str_tuple,
    check_int,
    check_servable_name,
    check_str,
    warn_deprecated,
)
from mindspore_serving.servable.method import function_id, input_names, record
from mindspore_serving.servable.method_builder import current
from mindspore_serving.servable.servable_method import runner

_Function = TypeVar("_Function", bound=Callable[..., Any])


def register_pipeline(
    output_names: str | Sequence[str],
) -> Callable[[_Function], _Function]:
    """Register a function that runs on data, once per instance.  A deprecated decorator.

    Unlike in `register_method`, the body gets values, and may call `PipelineServable.run`.
    """
    warn_deprecated("register_pipeline", "1.5.0", "register_method")
    outputs = as_str_tuple("output_names", output_names)

    def register(function: _Function) -> _Function:
        declaration = current("register_pipeline")
        inputs = input_names(function)
        slots = tuple(range(len(inputs)))
        returns = tuple(range(len(inputs), len(inputs) + len(outputs)))
        name = function_id(declaration, function)
        stage = Stage(StageKind.FUNCTION, name, slots, returns, tag="Pipeline")
        record(declaration, Method(function.__name__, inputs, outputs, (stage,), returns))
        return function

    return register


class PipelineServable:
    """Method of a servable of the same server, called inside a pipeline.  Deprecated.

    `version_number` 0 is the newest version that runs.
    """

    def __init__(self, servable_name: str, method: str, version_number: int = 0) -> None:
        warn_deprecated("PipelineServable", "1.5.0", "method")
        self.servable_name = check_servable_name("servable_name", servable_name)
        self.method = check_str("method", method)
        self.version_number = check_int("version_number", version_number, 0)

    def run(self, *args: Any) -> Any:
        """Run one instance; return one output, or a tuple if the method has several.

        Inputs are in the method's order. Raises RuntimeError if it fails, and outside a worker.
        """
        call = runner()
        if call is None:
            raise InvalidInputs(
                f"PipelineServable('{self.servable_name}', '{self.method}').run() failed: it may "
                "only be called in a function decorated by register_pipeline, which runs in a "
                "worker of the server"
            )
        instance = tuple(to_value(value) for value in args)
        (outputs,) = call(self.servable_name, self.method, self.version_number, [instance])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
