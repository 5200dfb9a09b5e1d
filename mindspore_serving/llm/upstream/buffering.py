"""Buffered answers: chunks that are sent when the answers are complete, in little memory."""

from array import array
from collections.abc import Iterator, Sequence
from io import StringIO

from mindspore_serving.core.llm_messages import Chunk, GeneratedToken, ToolCallDelta
from mindspore_serving.llm.upstream.budget import BufferQuota, memory_size


class BufferedAnswers:
    """All answers to a request so far; they count against `quota` until the end of `with`."""

    def __init__(self, quota: BufferQuota) -> None:
        self._quota = quota
        self._size = 0
        self._answers: dict[int, _Answer] = {}

    def __enter__(self) -> "BufferedAnswers":
        return self

    def __exit__(self, *error: object) -> None:
        self._quota.free(self._size)
        self._answers.clear()

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Add chunks.  Raises Overloaded if the quota is used up."""
        for chunk in chunks:
            size = memory_size(chunk)
            self._quota.take(size, self._size + size)
            self._size += size
            self._answers.setdefault(chunk.index, _Answer()).add(chunk)

    def chunks(self) -> list[Chunk]:
        """Return one chunk for each answer."""
        return [answer.join(index) for index, answer in self._answers.items()]


class _Answer:
    def __init__(self) -> None:
        self._text, self._reasoning = StringIO(), StringIO()
        self._ids = array("q")
        self._tokens: list[GeneratedToken] | None = None
        self._names: dict[int, str | None] = {}  # tool names, by call index
        self._arguments: dict[int, StringIO] = {}
        self._last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        self._text.write(chunk.text)
        self._reasoning.write(chunk.reasoning)
        self._ids.extend(chunk.token_ids)
        if chunk.tokens is not None:
            self._tokens = self._tokens or []
            self._tokens.extend(chunk.tokens)
        for call in chunk.tool_calls:
            if call.name is not None:
                self._names[call.index] = call.name
            self._arguments.setdefault(call.index, StringIO()).write(call.arguments)
        if chunk.finish_reason is not None:
            self._last = chunk

    def join(self, index: int) -> Chunk:
        last = self._last
        return Chunk(
            index,
            self._text.getvalue(),
            tuple(self._ids),
            None if self._tokens is None else tuple(self._tokens),
            last.finish_reason if last else None,
            last.stop_reason if last else None,
            self._reasoning.getvalue(),
            tuple(self._calls()),
        )

    def _calls(self) -> Iterator[ToolCallDelta]:
        for index, arguments in self._arguments.items():
            yield ToolCallDelta(index, self._names.get(index))
            if arguments.tell():
                yield ToolCallDelta(index, None, arguments.getvalue())
