"""The bytes of one stream's events.  What is the same in all of them is encoded once, for an event
is made for every token of every answer.
"""

from typing import Any

import msgspec

from mindspore_serving.frontends.openai.envelope import Head
from mindspore_serving.frontends.sse import event

DONE = event(b"[DONE]")
encode = msgspec.json.Encoder().encode


class Chunks:
    """Writes the chunks of one answer; `kind` is their `object`."""

    def __init__(self, head: Head, kind: str, *, has_usage: bool) -> None:
        self.has_usage = has_usage
        self._start = b"data: " + encode(head.to_object(kind))[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def of_choice(self, choice: bytes) -> bytes:
        """A chunk of one choice, which is JSON."""
        return b"%b%b%b" % (self._start, choice, self._end)

    def frame(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """What stands around the only part that changes, if a choice is `before`, that part and
        `after`."""
        return self._start + before, after + self._end

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk without choices that counts."""
        return b'%b],"usage":%b}\n\n' % (self._start, encode(usage))
