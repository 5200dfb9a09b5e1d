"""Encode the events of a language model as messages to the master."""

from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event, Started, encode_events
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.arena import Arena, NoArena
from mindspore_serving.ipc.messages import PartReply, SpanReport, to_fault


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """Reply to a part: encoded events, or the error that ends it."""

    part_id: int
    content: bytes | ServingError
    has_output: bool
    is_last: bool
    spans: list[SpanReport]

    def to_message(self, arena: Arena | NoArena) -> PartReply:
        """Return the message, with large encoded events in `arena`."""
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
    """Encode events; return a ServingError for their part if they cannot be encoded."""
    if isinstance(events, ServingError):
        return events
    try:
        return encode_events(events)
    except (OverflowError, ValueError) as error:
        log.error("failed to encode an answer", exc_info=True)
        return ServingError(f"the answer cannot be encoded: {error}")


def has_output(events: list[Event] | ServingError) -> bool:
    """Return whether the events have output for the client."""
    if isinstance(events, ServingError):
        return True
    return any(type(event) is not Started for event in events)
