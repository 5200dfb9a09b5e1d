"""Fields of requests and answers, compressed by HPACK (RFC 7541), and the rules for a request's.

Answers are written without a table: each field is a literal, with the index of its name where the
static table has it.  That needs no state, and their fields differ anyway.
"""

import re
from collections.abc import Iterable

import hpack

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http2.frames import ConnectionFault, ErrorCode, StreamFault

NO_TABLE = b"\x20"  # the first field block of a connection: answers use no dynamic table
_CACHED_BLOCKS, _CACHED_SIZE = 64, 1024  # of a connection; bytes of each
_FIELD_OVERHEAD = 32  # bytes that a field counts more, by RFC 9113, 6.5.2
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_PROTOCOL = b":protocol"  # of what a CONNECT is for
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_BAD_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")
# Three sizes of the table, of which a block may begin with two (RFC 7541, 4.2): each is work.
_MANY_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}")
_BAD_VALUE = re.compile(rb"[\0\r\n]")
_STATUS = {
    status: bytes([0x88 + i]) for i, status in enumerate((200, 204, 206, 304, 400, 404, 500))
}
_NAMES = {  # indices of the static table
    name: bytes([0x0F, index - 15])
    for name, index in (
        (b"cache-control", 24),
        (b"content-encoding", 26),
        (b"content-length", 28),
        (b"content-type", 31),
        (b"etag", 34),
        (b"retry-after", 53),
        (b"set-cookie", 55),
        (b"vary", 59),
        (b"www-authenticate", 61),
    )
}


class FieldReader:
    """Decodes the field blocks of a connection, within its limits.

    A block that leaves the table of the compression as it is decodes to the same fields until
    another block changes the table: requests of a busy client cost one look-up.
    """

    def __init__(self, limits: ServerLimits, *, has_websockets: bool = False) -> None:
        self._pseudo = _PSEUDO | {_PROTOCOL} if has_websockets else _PSEUDO
        self._max_head, self._max_headers = limits.max_head, limits.max_headers
        # Names count for more than in `max_head`: a head over that has its own answer, 431.
        max_size = 2 * limits.max_head + _FIELD_OVERHEAD * limits.max_headers
        self._decoder = hpack.Decoder(max_header_list_size=max_size)
        self._heads: dict[bytes, RequestHead] = {}

    def read_head(self, block: bytes) -> RequestHead:
        """Return the head of a request, which may be shared with others: it is not changed.

        Raises StreamFault for fields that are no request, HeadRefusal over a limit, and
        ConnectionFault.
        """
        head = self._heads.get(block)
        if head is None:
            fields, is_repeatable = self._decode(block)
            head = self._to_head(fields)
            if is_repeatable and len(self._heads) < _CACHED_BLOCKS and len(block) <= _CACHED_SIZE:
                self._heads[block] = head
        return head

    def read_trailers(self, block: bytes) -> bool:
        """Decode a block that is no request, and return whether trailers may have its fields.

        The table of later blocks may need it.  Raises ConnectionFault.
        """
        fields, _ = self._decode(block)
        return not any(name.startswith(b":") for name, _ in fields)

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return the fields of a block, and whether it left the table as it was."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        newest, num_entries, size = entries[0] if entries else None, len(entries), table.maxsize
        if _MANY_SIZES.match(block):
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, "the size of the table changes thrice"
            )
        try:
            fields: list[tuple[bytes, bytes]] = list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError:
            text = f"the headers are bigger than {self._max_head} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text) from None
        except hpack.HPACKError as error:
            text = f"the headers cannot be decompressed: {error}"
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, text) from None
        is_same = (entries[0] if entries else None) is newest  # a new entry is another object
        is_same = is_same and (len(entries), table.maxsize) == (num_entries, size)
        if not is_same:
            self._heads.clear()
        return fields, is_same

    def _to_head(self, fields: list[tuple[bytes, bytes]]) -> RequestHead:
        pseudo: dict[bytes, bytes] = {}
        headers: list[tuple[bytes, bytes]] = []
        for name, value in fields:
            if name in self._pseudo and name not in pseudo and not headers:
                pseudo[name] = value
            else:
                value = value.strip(b" \t")  # as in HTTP/1.1; clients of gRPC send such values
                _check(name, value)
                headers.append((name, value))
        if {b":method", b":scheme", b":path"} - pseudo.keys() or not pseudo[b":path"]:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a request has no method, scheme or path")
        if any(_BAD_VALUE.search(value) for value in pseudo.values()):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a pseudo-header has a forbidden character")
        return self._head_of(pseudo, headers)

    def _head_of(
        self, pseudo: dict[bytes, bytes], headers: list[tuple[bytes, bytes]]
    ) -> RequestHead:
        names = [name for name, _ in headers]
        authority = pseudo.get(b":authority")
        if authority is not None and b"host" not in names:
            headers.insert(0, (b"host", authority))
        elif authority is not None and (b"host", authority) not in headers:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "host is not :authority")
        if names.count(b"cookie") > 1:  # it may be cut into several fields
            cookies = [value for name, value in headers if name == b"cookie"]
            headers = [pair for pair in headers if pair[0] != b"cookie"]
            headers.append((b"cookie", b"; ".join(cookies)))
        method, target = pseudo[b":method"], pseudo[b":path"]
        protocol = pseudo.get(_PROTOCOL)
        if protocol is not None and method != b"CONNECT":
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "only CONNECT has a :protocol")
        is_upgrade = protocol == b"websocket"
        if is_upgrade:  # RFC 8441: what HTTP/1.1 offers by a header of GET
            method = b"GET"
            headers.append((b"upgrade", b"websocket"))
        by_name = dict(headers)
        length = by_name.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 19 or names.count(b"content-length") > 1:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "content-length is not a number")
        head = RequestHead(method, target, "2", headers, by_name, True, is_upgrade=is_upgrade)
        if head.size > self._max_head:
            text = f"The headers are bigger than {self._max_head} bytes"
            raise HeadRefusal(431, f"{text}; --limit max_head=BYTES of the server sets it.")
        if len(headers) > self._max_headers:
            text = f"The number of headers is over {self._max_headers}"
            raise HeadRefusal(431, f"{text}; --limit max_headers=NUMBER of the server sets it.")
        if method == b"CONNECT":
            raise HeadRefusal(400, "CONNECT is not supported: this is not a proxy.")
        return head


def _check(name: bytes, value: bytes) -> None:
    if not name or _BAD_NAME.search(name):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"the header {name[:50]!r} is not allowed here")
    if _BAD_VALUE.search(value):
        raise StreamFault(
            ErrorCode.PROTOCOL_ERROR, f"the header {name!r} has a forbidden character"
        )
    if name in _OF_CONNECTION or (name == b"te" and value.lower() != b"trailers"):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"HTTP/2 has no header {name.decode()}")


def _length(number: int, prefix: int) -> bytes:
    """Return an integer with a prefix of `prefix` bits (RFC 7541, 5.1)."""
    limit = (1 << prefix) - 1
    if number < limit:
        return bytes((number,))
    parts, number = [limit], number - limit
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field as a literal that no table keeps."""
    start = _NAMES.get(name)
    if start is None:
        name = name.lower()
        start = b"\0" + _length(len(name), 7) + name
    return start + _length(len(value), 7) + value


def encode_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the field block of an answer's head; fields that HTTP/2 does not have are left out."""
    return (_STATUS.get(status) or b"\x08\x03%d" % status) + encode_fields(headers)


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a field block of trailers, or the rest of an answer's head."""
    return b"".join([literal(name, value) for name, value in fields if name not in _OF_CONNECTION])
