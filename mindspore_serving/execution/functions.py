"""Calls the user's Python stage functions: one instance at a time, or in batches.

A failing instance fails alone.  A batch function that raises as a whole is called again with one
instance at a time, so that the instances of other requests in the batch still get their answers;
a generator that raises after k results has failed at instance k, and goes on behind it.
"""

from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.value import Value, to_argument, to_value
from mindspore_serving.errors import ServingError, StageFailed
from mindspore_serving.execution.job import Outcome

Arguments = tuple[Any, ...]


class FunctionCaller:
    """One registered function: its id, and how many outputs it must return."""

    def __init__(self, function: Callable[..., Any], function_id: str, num_outputs: int) -> None:
        self._function = function
        self._id = function_id
        self._num_outputs = num_outputs

    def call_each(self, instances: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """The function takes one instance's inputs as separate arguments."""
        return [self._call_one(instance) for instance in instances]

    def call_batch(self, instances: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """The function takes a tuple of instances and returns or yields a result for each."""
        batch = tuple([_arguments(instance) for instance in instances])
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batch):
            outcomes.extend(self._call_rest(batch[len(outcomes) :]))
        return outcomes

    def _call_one(self, instance: tuple[Value, ...]) -> Outcome:
        try:
            return self._outputs(self._function(*_arguments(instance)))
        except Exception as error:
            return self._failure(error)

    def _call_rest(self, batch: tuple[Arguments, ...]) -> list[Outcome]:
        """Outcomes of the first instances of `batch`, at least one."""
        try:
            results = self._function(batch)
        except Exception as error:
            if len(batch) == 1:
                return [self._failure(error)]
            return [self._call_rest((instance,))[0] for instance in batch]
        return self._collect(results, len(batch))

    def _collect(self, results: Any, count: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            iterator: Iterator[Any] = iter(results)
        except TypeError:
            return [self._failure(StageFailed(self._count_text(1, count)))] * count
        while len(outcomes) < count:
            try:
                result = next(iterator)
            except StopIteration:
                error = StageFailed(self._count_text(len(outcomes), count))
                return outcomes + [error] * (count - len(outcomes))
            except Exception as error:
                return [*outcomes, self._failure(error)]
            outcomes.append(self._checked(result))
        if isinstance(results, GeneratorType):
            results.close()
        return outcomes

    def _checked(self, result: Any) -> Outcome:
        try:
            return self._outputs(result)
        except Exception as error:
            return self._failure(error)

    def _outputs(self, result: Any) -> tuple[Value, ...]:
        if not isinstance(result, tuple | list):
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

    def _failure(self, error: Exception) -> ServingError:
        if isinstance(error, ServingError):
            return error
        log.debug("function %s raised %r", self._id, error)
        return StageFailed(str(error) or type(error).__name__)


def _arguments(instance: tuple[Value, ...]) -> Arguments:
    for value in instance:
        if isinstance(value, bytes):
            return tuple([to_argument(value) for value in instance])
    return instance
