"""Events of a language model as the messages that carry them to the master."""

from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event, Started, encode_events
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.arena import Arena, NoArena
from mindspore_serving.ipc.messages import PartReply, SpanReport, to_fault


@dataclass(frozen=True, slots=True)
class Encoded:
    """Events of one part; `has_output` if the client gets something of them."""

    body: bytes
    has_output: bool


def encode(events: list[Event] | ServingError) -> Encoded | ServingError:
    """An error of the part alone if no message can hold what the engine made."""
    if isinstance(events, ServingError):
        return events
    try:
        body = encode_events(events)
    except (OverflowError, ValueError) as error:
        log.error("sending an answer", exc_info=True)
        return ServingError(f"the answer cannot be sent: {error}")
    return Encoded(body, any(type(event) is not Started for event in events))


def to_reply(
    arena: Arena | NoArena,
    item_id: int,
    sent: Encoded | ServingError,
    spans: list[SpanReport],
    *,
    is_last: bool,
) -> PartReply:
    if isinstance(sent, ServingError):
        return PartReply(item_id, [], rejected=to_fault(sent), spans=spans)
    return PartReply(
        item_id, [arena.put(sent.body)], is_last=is_last, has_output=sent.has_output, spans=spans
    )
