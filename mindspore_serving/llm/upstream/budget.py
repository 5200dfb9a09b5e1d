"""How much an answer of another server may be, by the tokens that were asked for.  Knows no
connection and no clock.
"""

from mindspore_serving.core.llm_messages import Chunk
from mindspore_serving.errors import Overloaded, UpstreamFailed

TEXT_PER_TOKEN = 256  # characters; the longest tokens of vocabularies are runs of 128 spaces
EVENTS_PER_TOKEN = 8
BYTES_PER_TOKEN = 16 << 10  # of JSON with log-probabilities
_SLACK = 64  # tokens, for what is not counted in tokens: roles, usage, ends
_COUNTED_SLACK = 8  # tokens by which servers count differently
_TOKEN_WEIGHT = 512  # bytes of a `Token` in memory
_MAX_KEPT = 256 << 20  # bytes of answers that are sent when they are complete, all together
_MAX_SHARE = _MAX_KEPT // 4  # of one of them


class WrongPiece(UpstreamFailed):
    """What is no piece of an answer to the request."""


class AnswerBudget:
    """Of a request for `count` answers of at most `max_tokens` tokens each."""

    def __init__(self, max_tokens: int, count: int) -> None:
        self._max_tokens = max_tokens
        tokens = count * (max_tokens + _SLACK)
        self.max_bytes = tokens * BYTES_PER_TOKEN
        self._max_events = tokens * EVENTS_PER_TOKEN
        self._max_text = tokens * TEXT_PER_TOKEN
        self._num_events = self._text = 0
        self._tokens: dict[int, int] = {}  # by answer

    def take_event(self) -> None:
        """Raises WrongPiece."""
        self._num_events += 1
        if self._num_events > self._max_events:
            raise WrongPiece(f"it sent over {self._max_events} events, {self._reason}")

    def take_chunk(self, chunk: Chunk, *, has_ids: bool) -> None:
        """`has_ids`: the server itself says which tokens there are.  Raises WrongPiece."""
        self._text += _length(chunk)
        if self._text > self._max_text:
            raise WrongPiece(f"it sent over {self._max_text} characters, {self._reason}")
        if has_ids:
            count = self._tokens.get(chunk.index, 0) + len(chunk.token_ids)
            self._tokens[chunk.index] = count
            if count > self._max_tokens + _COUNTED_SLACK:
                raise WrongPiece(f"it sent {count} tokens, {self._reason}")

    @property
    def _reason(self) -> str:
        return f"where an answer has at most {self._max_tokens} tokens"


class KeptRoom:
    """Memory for answers that are kept until they are complete, of all requests."""

    def __init__(self, max_kept: int = _MAX_KEPT, max_share: int = _MAX_SHARE) -> None:
        self._max_kept, self._max_share = max_kept, max_share
        self._kept = 0

    def take(self, size: int, share: int) -> None:
        """`size` bytes more for a request that has `share` with them.  Raises Overloaded, and
        takes nothing.
        """
        if share > self._max_share or self._kept + size > self._max_kept:
            raise Overloaded(
                f"there is no room for the answer, of which {share} bytes have come: ask for a "
                "stream, or for fewer tokens"
            )
        self._kept += size

    def free(self, size: int) -> None:
        self._kept -= size


def weight(chunk: Chunk) -> int:
    """Bytes of memory that keeping it takes, about."""
    tokens = sum(1 + len(token.top) for token in chunk.tokens or ())
    return 4 * _length(chunk) + 8 * len(chunk.token_ids) + _TOKEN_WEIGHT * tokens


def _length(chunk: Chunk) -> int:
    """Characters that are shown of it."""
    calls = sum(len(call.name or "") + len(call.arguments) for call in chunk.tool_calls)
    return len(chunk.text) + len(chunk.reasoning) + calls
