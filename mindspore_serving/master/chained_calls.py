"""Chain of calls of a worker: the outputs of a call are inputs of later ones, without the worker.

It sends nothing, and decodes no values.
"""

from typing import Any

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import ServingError, StageFailed
from mindspore_serving.ipc.messages import CallStep, RequestPart, Slice, WorkerCall
from mindspore_serving.wire import native


class ChainedCall:
    """Calls of a chain for some instances; one that fails takes no part in later calls."""

    def __init__(self, message: WorkerCall) -> None:
        self.id = message.part.id
        self.failed_at = [0] * len(message.part.chunks)  # step, by instance
        self._message = message
        self._position = 0  # of the step that is called next
        self._values: dict[int, list[native.Piece]] = {}  # by instance that has not failed
        self._chunks: dict[int, bytes | memoryview] = {}  # messages of their last step, the same
        self._faults: list[ServingError | None] = [None] * len(message.part.chunks)
        for index, chunk in enumerate(message.part.chunks):
            assert not isinstance(chunk, Slice)
            self._extend(index, chunk)

    def next_call(self) -> WorkerCall | None:
        """Return the call of the next step; None after the last one, or if no instance is left."""
        if self._position == len(self._message.steps) or not self._values:
            return None
        step, part = self._message.steps[self._position], self._message.part
        chunks: list[Any] = [self._pick(index, step.inputs) for index in self._values]
        part = RequestPart(
            part.id,
            step.method,
            part.codec,
            chunks,
            None,
            request_id=part.request_id,
            traceparent=part.traceparent,
            tracestate=part.tracestate,
        )
        parents, waits = self._message.parents, self._message.waits
        return WorkerCall(step.servable, step.version, part, parents, waits)

    def take(self, reply: Reply) -> None:
        """Take the reply to the call of a step."""
        step = self._message.steps[self._position]
        for row, index in enumerate(list(self._values)):
            fault = reply.failure
            if fault is None and reply.faults is not None:
                fault = reply.faults[row]
            if fault is None:
                self._extend(index, reply.instances[row], step)
            else:
                self._fail(index, fault)
        self._position += 1

    def reply(self) -> Reply:
        """Return the reply to the worker, with the values that it wants."""
        returns, left = self._message.returns, self._values
        instances = [
            self._pick(index, returns) if index in left else b""
            for index in range(len(self._faults))
        ]
        return Reply(instances, self._faults if any(self._faults) else None)

    def _extend(self, index: int, chunk: bytes | memoryview, step: CallStep | None = None) -> None:
        """Add the values of a message to those of an instance."""
        try:
            pieces = native.split_values(chunk)
        except ServingError as error:
            self._fail(index, error)
            return
        if step is not None and len(pieces) != step.num_outputs:
            text = f"it returned {len(pieces)} outputs, {step.num_outputs} are registered"
            self._fail(index, StageFailed(text))
            return
        self._values.setdefault(index, []).extend(pieces)
        self._chunks[index] = chunk

    def _fail(self, index: int, error: ServingError) -> None:
        self._values.pop(index, None)
        self._chunks.pop(index, None)
        self._faults[index], self.failed_at[index] = error, self._position

    def _pick(self, index: int, numbers: list[int]) -> bytes | memoryview:
        """Return a message of the values with `numbers`: the last message, if it has just these."""
        values = self._values[index]
        if self._position:
            count = self._message.steps[self._position - 1].num_outputs
            if numbers == list(range(len(values) - count, len(values))):
                return self._chunks[index]
        return native.join_values([values[number] for number in numbers])
