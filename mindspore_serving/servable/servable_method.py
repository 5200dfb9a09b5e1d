"""`method` names a method of another servable: a stage for `add_stage`, or called by a function.

It calls nothing: a worker binds the function that calls other servables (`bind_runner`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import check_bool, check_int, check_servable_name, check_str
from mindspore_serving.servable.instances import call_instances

Runner: TypeAlias = Callable[[str, str, int, list[tuple[Value, ...]]], list[tuple[Value, ...]]]
_runner: Runner | None = None


def bind_runner(runner: Runner | None) -> None:
    """Set the function that calls of other servables run; None removes it.

    `runner(servable, method, version, instances)` gets one tuple of inputs per instance, in the
    method's order, and returns one tuple of outputs per instance. It raises ServingError.
    """
    global _runner
    _runner = runner


def runner() -> Runner | None:
    """Return the function that calls other servables; None outside a worker."""
    return _runner


@dataclass(frozen=True, slots=True)
class ServableMethod:
    """Method of a servable of the same server.  Made by `method`."""

    servable: str
    method: str
    version: int = 0
    streams: bool = False

    @property
    def label(self) -> str:
        """Name in errors, as 'ocr.predict' or 'ocr.predict' of version 2."""
        suffix = f" of version {self.version}" if self.version else ""
        return f"'{self.servable}.{self.method}'{suffix}"

    def call(self, *args: Any) -> Any:
        """Call the method now, from inside a stage function, and wait for the outputs.

        `call(x1, x2)` runs one instance and returns its output, or a tuple if there are several.
        `call([[x1, x2], [x1, x2]])`, one argument that is a list or tuple, runs any number of
        instances and returns a tuple with one tuple of outputs for each.  Inputs are in the
        method's order.  The worker runs no other stage while it waits: use `add_stage` where the
        call does not depend on a condition.

        Raises RuntimeError if the call fails, and outside a worker.
        """
        call = runner()
        run = None if call is None else lambda rows: call(*self._target, rows)
        return call_instances(args, run, f"Method({self.label}).call()")

    @property
    def _target(self) -> tuple[str, str, int]:
        return self.servable, self.method, self.version


def method(name: str, *, version: int = 0, streams: bool = False) -> ServableMethod:
    """Return a method of another servable, as a stage for `add_stage` or to be called.

        read = register.method("ocr_rec.predict")

        @register.register_method(output_names=["text"])
        def read_line(image):
            crop = register.add_stage(cut, image, outputs_count=1)
            return register.add_stage(read, crop, outputs_count=1)

    The instances of concurrent requests are batched there, wherever that servable has workers.
    The deadline of a request holds for its calls, and they end when the client leaves.

    Args:
        name: "servable.method".  A method of this servable must be registered above; its stages
            become stages of the method that uses it.
        version: Version of that servable, 0 for the newest that runs.
        streams: Whether its pieces are passed on one by one to a client that asks for a stream;
            else the answer is taken whole.

    Raises RuntimeError for a name without a dot, and wrong types.
    """
    servable, dot, method_name = check_str("name", name).rpartition(".")
    if not dot or not method_name.isidentifier():
        raise InvalidInputs(
            f"Parameter 'name' of method() is {name!r}, expected 'servable.method', such as "
            "'ocr.predict'"
        )
    return ServableMethod(
        check_servable_name("name", servable),
        method_name,
        check_int("version", version, 0),
        check_bool("streams", streams),
    )
