"""Call the user's Python stage functions, for one instance at a time or for batches.

An instance that fails does not fail the others.  A batch function that raises before its first
result is called again for each instance, so that the instances of other requests in the batch still
get their answers.  A generator that raises after k results has failed at instance k; it is called
again for the instances after that.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.core.value import Value, to_argument, to_value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.worker.job import Outcome

Arguments = tuple[Any, ...]
MAX_LOGGED_LINES = 16  # lines of a function's code whose exceptions are logged
MAX_FRAMES = 8  # the last ones of each traceback
_SEQUENCES = (tuple, list)
_OF_PYTHON = (ArithmeticError, AttributeError, LookupError, NameError, TypeError)
_OF_BYTES = ("bytes-like object", "encoding")  # in errors of Python about a str
_MAX_SHOWN = 8  # arguments in an error


class FunctionCaller:
    """Registered function, with its id and the number of outputs that it must return."""

    def __init__(self, function: Callable[..., Any], function_id: str, num_outputs: int) -> None:
        self._function = function
        self._id = function_id
        self._num_outputs = num_outputs
        self._logged_lines: set[tuple[str, int]] = set()  # that have raised: file and line

    def call_each(self, instances: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """Call the function once per instance, with the instance's inputs as arguments."""
        return [self._call_single(instance) for instance in instances]

    def iterate(self, instance: tuple[Value, ...]) -> Iterator[Outcome]:
        """Iterate over the results of a generator function; an error is the last outcome."""
        results = self._function(*_arguments(instance))
        try:
            for result in results:
                yield self._outputs(result)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield self._failure(error, instance)
        finally:
            results.close()

    def call_batch(self, instances: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """Call the function with a tuple of instances; it returns or yields a result for each."""
        batch = tuple([_arguments(instance) for instance in instances])
        outcomes = self._call_remaining(batch)
        while len(outcomes) < len(batch):
            outcomes.extend(self._call_remaining(batch[len(outcomes) :]))
        return outcomes

    def _call_single(self, instance: tuple[Value, ...]) -> Outcome:
        try:
            result = self._function(*_arguments(instance))
            if isinstance(result, GeneratorType):
                return join([self._outputs(piece) for piece in result])
            return self._outputs(result)
        except BaseException as error:
            return self._failure(error, instance)

    def _call_remaining(self, batch: tuple[Arguments, ...]) -> list[Outcome]:
        """Call the function for `batch`; return the outcomes of at least its first instance."""
        outcomes: list[Outcome] = []
        try:
            results = self._function(batch)
            try:
                iterator: Iterator[Any] = iter(results)
            except TypeError:
                return [StageFailed(self._type_text(results, len(batch)))] * len(batch)
            for result in islice(iterator, len(batch)):
                try:
                    outcomes.append(self._outputs(result))
                except Exception as error:
                    outcomes.append(self._failure(error))
        except BaseException as error:
            if not outcomes and len(batch) > 1:
                return [self._call_remaining((instance,))[0] for instance in batch]
            return [*outcomes, self._failure(error, batch[len(outcomes)])]
        if isinstance(results, GeneratorType):
            results.close()
        missing = len(batch) - len(outcomes)
        return outcomes + [StageFailed(self._count_text(len(outcomes), len(batch)))] * missing

    def _outputs(self, result: Any) -> tuple[Value, ...]:
        if not isinstance(result, _SEQUENCES):
            result = (result,)
        if len(result) != self._num_outputs:
            raise StageFailed(
                f"The outputs number {len(result)} of one instance returned by function "
                f"'{self._id}' is not equal to the outputs number {self._num_outputs} registered"
            )
        return tuple([to_value(item) for item in result])

    def _count_text(self, returned: int, expected: int) -> str:
        return (
            f"The number {returned} of instances returned by function '{self._id}' is not equal "
            f"to the number {expected} of instances provided to this function."
        )

    def _type_text(self, results: Any, expected: int) -> str:
        return (
            f"Function '{self._id}' should return or yield one result for each of {expected} "
            f"instances, but returned {type(results)}"
        )

    def _failure(self, error: BaseException, instance: tuple[Any, ...] = ()) -> ServingError:
        if isinstance(error, ServingError):
            return error
        self._log(error)
        text = failure_text(error)
        if isinstance(error, TypeError | AttributeError) and instance:
            arguments = _arguments(instance)
            for index, name in _texts_of(self._function):
                if index < len(arguments) and not isinstance(arguments[index], str):
                    shown = _describe(arguments[index])
                    return InvalidInputs(f"argument '{name}' is {shown}, expected a text: {text}")
            text += f"; the function was called with {describe_values(arguments)}"
            if any(word in text for word in _OF_BYTES) and "a str" in text:
                text += ': bytes are sent as {"b64": BASE64}'
        return StageFailed(text)

    def _log(self, error: BaseException) -> None:
        """Log the traceback of an exception, once for each line of code that raises.

        Clients can cause exceptions as often as they like.  The text of one can contain their
        values, so it is logged at debug only.
        """
        log.debug("function %s raised %r", self._id, error, exc_info=True)
        if len(self._logged_lines) >= MAX_LOGGED_LINES:
            return
        # The first frame is that of this file.
        first = last = error.__traceback__ and error.__traceback__.tb_next
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is None:
            return
        line = last.tb_frame.f_code.co_filename, last.tb_lineno
        if line in self._logged_lines:
            return
        self._logged_lines.add(line)
        frames = "".join(traceback.format_tb(first, -MAX_FRAMES))
        text = "function %s raised %s here (shown once; level debug shows every exception):"
        log.warning(f"{text}\n%s", self._id, type(error).__name__, frames.rstrip())


def failure_text(error: BaseException) -> str:
    """Return the text that clients get of an exception raised by a stage.

    Errors of Python and numpy, such as a division by zero, have their type before the text.  The
    text of exceptions such as SystemExit, which would end a process and here end a request, does
    not explain itself, so their repr is returned.
    """
    if isinstance(error, _OF_PYTHON) and error.args:  # whose text does not say what it is
        return f"{_public_name(error)}: {error}"
    if isinstance(error, Exception):
        return str(error) or type(error).__name__
    return repr(error)


def _texts_of(function: Callable[..., Any]) -> list[tuple[int, str]]:
    """Return the parameters that are annotated as str, with their positions."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins
        return []
    return [(i, row.name) for i, row in enumerate(parameters) if row.annotation in (str, "str")]


def _public_name(error: BaseException) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))


def describe_values(values: Sequence[Any]) -> str:
    """Return the types of a function's arguments, as "int32 [], a str"."""
    shown = [_describe(value) for value in values[:_MAX_SHOWN]]
    return ", ".join(shown) + (", ..." if len(values) > _MAX_SHOWN else "")


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {list(value.shape)}"
    return "a str" if isinstance(value, str) else "bytes" if isinstance(value, bytes) else "a value"


def join(pieces: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """Join the pieces of a stream to one answer.

    Texts and bytes are concatenated; of other values the last is taken.  Raises StageFailed if
    there is no piece.
    """
    if not pieces:
        raise StageFailed("the function yielded nothing")
    return tuple(_join_slot(values) for values in zip(*pieces, strict=True))


def _join_slot(values: Sequence[Value]) -> Value:
    if all(isinstance(value, str) for value in values):
        return "".join(values)  # type: ignore[arg-type]
    if all(isinstance(value, bytes) for value in values):
        return b"".join(values)  # type: ignore[arg-type]
    return values[-1]


def _arguments(instance: tuple[Value, ...]) -> Arguments:
    for value in instance:
        if isinstance(value, bytes):
            return tuple([to_argument(value) for value in instance])
    return instance
