"""Recorded requests: a file with the body of a RESTful request, and its method, in each line.

`{"method": "predict", "instances": [{"x": 1}], "count": 2}`; it runs none of them.
"""

import os
from collections.abc import Iterator

import msgspec

from mindspore_serving.errors import StartError

MAX_SIZE = 64 << 20  # bytes of the file
MAX_COUNT = 10_000  # of all lines


class RecordedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the file; `method` may be missing if the servable has one."""

    instances: msgspec.Raw
    method: str = ""
    count: int = 1

    @property
    def body(self) -> bytes:
        """Body of the request."""
        return b'{"instances":%b}' % bytes(self.instances)


def read(path: str) -> Iterator[tuple[int, RecordedRequest]]:
    """Iterate over the requests, with the numbers of their lines.  Raises StartError."""
    size = os.path.getsize(path)
    if size > MAX_SIZE:
        raise StartError(f"{path} has {size} bytes, at most {MAX_SIZE} are accepted")
    decoder = msgspec.json.Decoder(RecordedRequest)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise StartError(
                    f"{path}:{number}: {error}; expected "
                    '{"method": "METHOD", "instances": [{"INPUT": VALUE}]}'
                ) from None
