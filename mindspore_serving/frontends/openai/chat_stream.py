"""The chunks of a chat's stream."""

from collections.abc import AsyncIterator, Mapping

from mindspore_serving.core.llm_messages import Chunk, Finished, Generate, Token
from mindspore_serving.frontends.language import Stream
from mindspore_serving.frontends.openai.chunks import DONE, Chunks, encode
from mindspore_serving.frontends.openai.envelope import Head, finish_reason, to_usage
from mindspore_serving.frontends.openai.errors import to_failure
from mindspore_serving.frontends.openai.logprobs import of_chat
from mindspore_serving.frontends.openai.reading import Reader, Reading, to_delta

_ROLE = {"role": "assistant", "content": "", "refusal": None}


async def stream_chat(stream: Stream, chunks: "ChatChunks", ask: Generate) -> AsyncIterator[bytes]:
    """The events of the answers of `stream`, which has begun."""
    try:
        yield chunks.begin(ask.params.n)
        async for event in stream:
            if isinstance(event, Chunk):
                made = chunks.take(event)
                if made:
                    yield made
            elif isinstance(event, Finished):
                yield chunks.end(event)
    except Exception as error:
        yield to_failure(error).to_event()


class ChatChunks:
    """Makes chunks of pieces."""

    def __init__(self, head: Head, reading: Reading, *, has_usage: bool) -> None:
        self._chunks = Chunks(head, "chat.completion.chunk", has_usage=has_usage)
        self._reading = reading
        self._choices: list[_Choice] = []

    def begin(self, n: int) -> bytes:
        """The first chunk of each of `n` choices."""
        self._choices = [_Choice(self._chunks, index, self._reading) for index in range(n)]
        return b"".join([choice.begin() for choice in self._choices])

    def take(self, piece: Chunk) -> bytes:
        """What `piece` makes, perhaps nothing.  Raises ServingError if the model failed."""
        return self._choices[piece.index].take(piece)

    def end(self, ended: Finished) -> bytes:
        usage = self._chunks.usage(to_usage([ended])) if self._chunks.has_usage else b""
        return usage + DONE


class _Choice:
    def __init__(self, chunks: Chunks, index: int, reading: Reading) -> None:
        self._chunks = chunks
        self._index = index
        self._reader: Reader | None = None if reading.is_plain else reading.begin()
        self._waiting: list[Token] = []  # that no chunk told of yet
        self._before, self._after = chunks.frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        return self._chunk(_ROLE)

    def take(self, piece: Chunk) -> bytes:
        if self._reader is None and piece.finish_reason is None and piece.tokens is None:
            if not piece.text:
                return b""
            return b"%b%b%b" % (self._before, encode(piece.text), self._after)
        self._waiting += piece.tokens or ()
        made = b"".join([self._chunk(delta) for delta in self._deltas(piece)])
        if piece.finish_reason is not None:
            has_calls = self._reader is not None and self._reader.has_calls
            made += self._chunk({}, finish_reason(piece, has_calls=has_calls))
        return made

    def _deltas(self, piece: Chunk) -> list[dict[str, object]]:
        if self._reader is None:
            return [{"content": piece.text}] if piece.text else []
        is_end = piece.finish_reason is not None
        return [to_delta(delta) for delta in self._reader.take(piece.text, is_end=is_end)]

    def _chunk(self, delta: Mapping[str, object], reason: str | None = None) -> bytes:
        logprobs = of_chat(self._waiting) if self._waiting else None
        self._waiting = []
        choice = {
            "index": self._index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return self._chunks.of_choice(encode(choice))
