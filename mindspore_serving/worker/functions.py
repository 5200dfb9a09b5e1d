"""Calls the user's Python stage functions: one instance at a time, or in batches.

A failing instance fails alone.  A batch function that raises as a whole, or before its first
result, is called again with one instance at a time, so that the instances of other requests in the
batch still get their answers; a generator that raises after k results has failed at instance k,
and goes on behind it.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.value import Value, to_argument, to_value
from mindspore_serving.errors import ServingError, StageFailed
from mindspore_serving.worker.job import Outcome

Arguments = tuple[Any, ...]
MOST_PLACES = 16  # of one function's code, whose exceptions are logged
MOST_FRAMES = 8  # of each, the last ones
_SEVERAL = (tuple, list)


class FunctionCaller:
    """One registered function: its id, and how many outputs it must return."""

    def __init__(self, function: Callable[..., Any], function_id: str, num_outputs: int) -> None:
        self._function = function
        self._id = function_id
        self._num_outputs = num_outputs
        self._places: set[tuple[str, int]] = set()  # where exceptions came from

    def call_each(self, instances: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """The function takes one instance's inputs as separate arguments."""
        return [self._call_one(instance) for instance in instances]

    def iterate(self, instance: tuple[Value, ...]) -> Iterator[Outcome]:
        """A generator function's results one by one; a failure is the last of them."""
        results = self._function(*_arguments(instance))
        try:
            for result in results:
                yield self._outputs(result)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield self._failure(error)
        finally:
            results.close()

    def call_batch(self, instances: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """The function takes a tuple of instances and returns or yields a result for each."""
        batch = tuple([_arguments(instance) for instance in instances])
        outcomes = self._call_rest(batch)
        while len(outcomes) < len(batch):
            outcomes.extend(self._call_rest(batch[len(outcomes) :]))
        return outcomes

    def _call_one(self, instance: tuple[Value, ...]) -> Outcome:
        try:
            result = self._function(*_arguments(instance))
            if isinstance(result, GeneratorType):
                return join([self._outputs(piece) for piece in result])
            return self._outputs(result)
        except BaseException as error:
            return self._failure(error)

    def _call_rest(self, batch: tuple[Arguments, ...]) -> list[Outcome]:
        """Outcomes of the first instances of `batch`, at least one."""
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
                return [self._call_rest((instance,))[0] for instance in batch]
            return [*outcomes, self._failure(error)]
        if isinstance(results, GeneratorType):
            results.close()
        missing = len(batch) - len(outcomes)
        return outcomes + [StageFailed(self._count_text(len(outcomes), len(batch)))] * missing

    def _outputs(self, result: Any) -> tuple[Value, ...]:
        if not isinstance(result, _SEVERAL):
            result = (result,)
        if len(result) != self._num_outputs:
            raise StageFailed(
                f"The outputs number {len(result)} of one instance returned by function "
                f"'{self._id}' is not equal to the outputs number {self._num_outputs} registered"
            )
        return tuple([to_value(item) for item in result])

    def _count_text(self, returned: int, given: int) -> str:
        return (
            f"The number {returned} of instances returned by function '{self._id}' is not equal "
            f"to the number {given} of instances provided to this function."
        )

    def _type_text(self, results: Any, given: int) -> str:
        return (
            f"Function '{self._id}' should return or yield one result for each of {given} "
            f"instances, but returned {type(results)}"
        )

    def _failure(self, error: BaseException) -> ServingError:
        if isinstance(error, ServingError):
            return error
        self._log(error)
        return StageFailed(failure_text(error))

    def _log(self, error: BaseException) -> None:
        """Where it was raised, the first time there: clients can cause it as often as they like.
        Its text may hold their values, so that is logged at debug alone.
        """
        log.debug("function %s raised %r", self._id, error, exc_info=True)
        if len(self._places) >= MOST_PLACES:
            return
        first = last = error.__traceback__ and error.__traceback__.tb_next  # behind our own
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is None:
            return
        place = last.tb_frame.f_code.co_filename, last.tb_lineno
        if place in self._places:
            return
        self._places.add(place)
        lines = "".join(traceback.format_tb(first, -MOST_FRAMES))
        text = "function %s raised %s here (shown once; the level debug shows all of it):"
        log.warning(f"{text}\n%s", self._id, type(error).__name__, lines.rstrip())


def failure_text(error: BaseException) -> str:
    """What a client reads of an exception that a stage raised.  The text of one such as SystemExit,
    which is to end a process and here ends a request, says nothing by itself.
    """
    if isinstance(error, KeyError) and error.args:  # its text is the key alone
        return f"KeyError: {error}"
    if isinstance(error, Exception):
        return str(error) or type(error).__name__
    return repr(error)


def join(pieces: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """What a stream amounts to for a request that wants one answer: texts and bytes one after
    another, of anything else the last.  Raises StageFailed if there is no piece.
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
