"""Events of a language model as the messages that carry them to the master."""

from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event, Started, encode_events
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.arena import Arena, NoArena
from mindspore_serving.ipc.messages import PartReply, SpanReport, to_fault


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """More of what becomes of a part: encoded events, or the error that ends it."""

    part_id: int
    content: bytes | ServingError
    has_output: bool
    is_last: bool
    spans: list[SpanReport]

    def to_message(self, arena: Arena | NoArena) -> PartReply:
        """The message, with its events in `arena` if they are many."""
        if isinstance(self.content, ServingError):
            return PartReply(self.part_id, [], rejected=to_fault(self.content), spans=self.spans)
        return PartReply(
            self.part_id,
            [arena.put(self.content)],
            is_last=self.is_last,
            has_output=self.has_output,
            spans=self.spans,
        )


def encode(events: list[Event] | ServingError) -> bytes | ServingError:
    """Encode events; an error of their part alone if no message can hold what the engine made."""
    if isinstance(events, ServingError):
        return events
    try:
        return encode_events(events)
    except (OverflowError, ValueError) as error:
        log.error("sending an answer", exc_info=True)
        return ServingError(f"the answer cannot be sent: {error}")


def has_output(events: list[Event] | ServingError) -> bool:
    """Whether the client gets something of them."""
    if isinstance(events, ServingError):
        return True
    return any(type(event) is not Started for event in events)
