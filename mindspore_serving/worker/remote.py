"""Calls of models that another worker owns: their jobs are parked until the reply.

It knows messages only; the worker's loop reads the channel.
"""

from collections.abc import Sequence
from itertools import count

from mindspore_serving import log
from mindspore_serving.core.graph import Stage
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.messages import PartReply, RequestPart, WorkerCall
from mindspore_serving.tracing import user_spans
from mindspore_serving.wire import native
from mindspore_serving.worker.connection import Inbox, MasterConnection
from mindspore_serving.worker.job import Job, Outcome
from mindspore_serving.worker.loaded_servable import call_name


class RemoteCaller:
    """Calls in flight to models of other workers; their replies arrive through `inbox`."""

    def __init__(self, connection: MasterConnection, inbox: Inbox) -> None:
        self.inbox = inbox
        self.servable = ""
        self.version = 0
        self._connection = connection
        self._ids = count(1)
        self._parked: dict[int, list[Job]] = {}

    def start(self, key: str, subgraph: int, jobs: list[Job], stage: Stage) -> None:
        rows = [tuple(job.values[slot] for slot in stage.inputs) for job in jobs]
        self._parked[self._ask_model(key, subgraph, rows)] = jobs

    def call(self, key: str, subgraph: int, rows: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        return self._wait(self._ask_model(key, subgraph, rows), len(rows))

    def call_method(
        self, servable: str, version: int, method: str, rows: Sequence[tuple[Value, ...]]
    ) -> list[Outcome]:
        """Call a method of any servable, with its inputs by position, and wait for the reply."""
        return self._wait(self._ask(servable, version, method, rows), len(rows))

    def take(self, reply: PartReply) -> tuple[list[Job], list[Outcome]]:
        """Return the parked jobs that `reply` answers, and their outcomes."""
        jobs = self._parked.pop(reply.id)
        return jobs, self._outcomes(reply, len(jobs))

    def _wait(self, call_id: int, expected: int) -> list[Outcome]:
        return self._outcomes(self.inbox.wait_for(call_id), expected)

    def _outcomes(self, reply: PartReply, expected: int) -> list[Outcome]:
        if reply.rejected is not None:
            return [reply.rejected.to_error()] * expected
        outcomes: list[Outcome] = []
        for index, payload in enumerate(reply.instances):
            fault = reply.faults[index] if reply.faults else None
            if fault is not None:
                outcomes.append(fault.to_error())
            else:
                outcomes.append(native.decode_values(bytes(self._connection.view.get(payload))))
        self._connection.release(reply)
        if len(outcomes) != expected:
            text = f"{expected} instances were sent to a model, {len(outcomes)} came back"
            return [ServingError(text)] * expected
        return outcomes

    def _ask_model(self, key: str, subgraph: int, rows: Sequence[tuple[Value, ...]]) -> int:
        return self._ask(self.servable, self.version, call_name(key, subgraph), rows)

    def _ask(
        self, servable: str, version: int, method: str, rows: Sequence[tuple[Value, ...]]
    ) -> int:
        """Send a call without timeout and return its id.

        The worker that runs it replies, or the master does if that worker dies.
        """
        call_id = next(self._ids)
        chunks = [self._connection.arena.put(native.encode_values(row)) for row in rows]
        context = user_spans.current.get()
        part = RequestPart(
            call_id,
            method,
            codec="native",
            chunks=chunks,
            timeout=None,
            request_id=log.request_id.get(),
            traceparent="" if context is None else context.traceparent,
            tracestate="" if context is None else context.state,
        )
        self._connection.send(WorkerCall(servable, version, part))
        return call_id
