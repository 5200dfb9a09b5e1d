"""Calls of a worker that decodes to workers that compute prompts."""

from itertools import count

from mindspore_serving.core.llm_messages import (
    CODEC,
    Event,
    decode_events,
    encode_request,
)
from mindspore_serving.core.prefill_messages import Prefill
from mindspore_serving.core.roles import PREFILL_METHOD
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.messages import CallReply, DropCall, RequestPart, WorkerCall
from mindspore_serving.worker.connection import MasterConnection
from mindspore_serving.worker.remote import RemoteCaller


class PrefillCalls:
    """Implements `PrefillCaller`; the ids of its calls are negative, unlike those of stages."""

    def __init__(self, connection: MasterConnection, remote: RemoteCaller) -> None:
        self._connection, self._remote = connection, remote
        self._ids = count(-1, -1)

    def start(self, request: Prefill, item_id: int, log_id: str) -> int:
        call_id = next(self._ids)
        chunk = self._connection.arena.put(encode_request(request))
        part = RequestPart(
            call_id, PREFILL_METHOD, CODEC, [chunk], None, is_stream=True, request_id=log_id
        )
        remote = self._remote
        self._connection.send(WorkerCall(remote.servable, remote.version, part, [item_id]))
        return call_id

    def drop(self, call_id: int) -> None:
        self._connection.send(DropCall(call_id))

    def read(self, message: CallReply) -> list[Event] | ServingError:
        """Return the events of a reply, or its error; free its memory."""
        reply, view = message.reply, self._connection.view
        if reply.rejected is not None:
            return reply.rejected.to_error()
        events: list[Event] = []
        for payload in reply.instances:
            events += decode_events(bytes(view.get(payload)))
        self._connection.release(reply)
        return events


def is_prefill(message: CallReply) -> bool:
    """Return whether a reply is to a call of `PrefillCalls`."""
    return message.reply.id < 0
