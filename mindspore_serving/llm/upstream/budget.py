"""Limits on the answer of another server, by the tokens that were requested.

Knows no connection and no clock.
"""

from mindspore_serving.core.llm_messages import Chunk
from mindspore_serving.errors import Overloaded, UpstreamFailed

TEXT_PER_TOKEN = 256  # characters; the longest tokens of vocabularies are runs of 128 spaces
EVENTS_PER_TOKEN = 8
BYTES_PER_TOKEN = 16 << 10  # of JSON with log-probabilities
_SLACK = 64  # tokens, for events that carry none: roles, usage, ends
_COUNTED_SLACK = 8  # tokens by which counts of servers differ
_TOKEN_WEIGHT = 512  # bytes of a `Token` in memory
_MAX_BUFFERED = 256 << 20  # bytes of all answers that are sent when they are complete
_MAX_SHARE = _MAX_BUFFERED // 4  # bytes of one answer


class InvalidChunk(UpstreamFailed):
    """A chunk that does not belong to an answer to the request."""


class AnswerBudget:
    """Limits of a request for `count` answers of at most `max_tokens` tokens each."""

    def __init__(self, max_tokens: int, count: int) -> None:
        self._max_tokens = max_tokens
        tokens = count * (max_tokens + _SLACK)
        self.max_bytes = tokens * BYTES_PER_TOKEN
        self._max_events = tokens * EVENTS_PER_TOKEN
        self._max_text = tokens * TEXT_PER_TOKEN
        self._num_events = self._text = 0
        self._tokens: dict[int, int] = {}  # by answer

    def take_event(self) -> None:
        """Count an event.  Raises InvalidChunk over the limit."""
        self._num_events += 1
        if self._num_events > self._max_events:
            raise InvalidChunk(f"it sent over {self._max_events} events, {self._reason}")

    def take_chunk(self, chunk: Chunk, *, has_ids: bool) -> None:
        """Count a chunk.  Raises InvalidChunk over a limit.

        `has_ids`: the server itself names the tokens, so they can be counted.
        """
        self._text += _length(chunk)
        if self._text > self._max_text:
            raise InvalidChunk(f"it sent over {self._max_text} characters, {self._reason}")
        if has_ids:
            count = self._tokens.get(chunk.index, 0) + len(chunk.token_ids)
            self._tokens[chunk.index] = count
            if count > self._max_tokens + _COUNTED_SLACK:
                raise InvalidChunk(f"it sent {count} tokens, {self._reason}")

    @property
    def _reason(self) -> str:
        return f"but an answer has at most {self._max_tokens} tokens"


class BufferQuota:
    """Memory quota of answers that are buffered until they are complete, over all requests."""

    def __init__(self, max_buffered: int = _MAX_BUFFERED, max_share: int = _MAX_SHARE) -> None:
        self._max_buffered, self._max_share = max_buffered, max_share
        self._buffered = 0  # bytes

    def take(self, size: int, share: int) -> None:
        """Reserve `size` more bytes for a request that then has `share`.

        Raises Overloaded over a limit, and then reserves nothing.
        """
        if share > self._max_share or self._buffered + size > self._max_buffered:
            raise Overloaded(
                f"no memory is left for the answer, of which {share} bytes have arrived: request a "
                "stream, or for fewer tokens"
            )
        self._buffered += size

    def free(self, size: int) -> None:
        self._buffered -= size


def memory_size(chunk: Chunk) -> int:
    """Estimate the bytes of memory that the chunk takes."""
    tokens = sum(1 + len(token.top) for token in chunk.tokens or ())
    return 4 * _length(chunk) + 8 * len(chunk.token_ids) + _TOKEN_WEIGHT * tokens


def _length(chunk: Chunk) -> int:
    """Return the characters of the chunk that clients see."""
    calls = sum(len(call.name or "") + len(call.arguments) for call in chunk.tool_calls)
    return len(chunk.text) + len(chunk.reasoning) + calls
