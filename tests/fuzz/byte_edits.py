"""Edits of bytes that know no structure."""

from random import Random


def edit(data: bytes, random: Random, most: int = 4) -> bytes:
    """`data` after one to `most` edits."""
    for _ in range(random.randint(1, most)):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((0, 1, 1, 2, 4, 16, len(data))))
        data = data[:start] + _instead(data[start:end], random) + data[end:]
    return data


def _instead(piece: bytes, random: Random) -> bytes:
    kind = random.randrange(7)
    if kind == 0:
        return b""
    if kind == 1:
        return piece * 2
    if kind == 2:
        return random.randbytes(random.randint(1, 8))
    if kind == 3 and piece:
        return bytes([piece[0] ^ (1 << random.randrange(8))]) + piece[1:]
    if kind == 4:
        return random.choice((b"\0", b"\xff", b"\r\n", b"\n", b" ", b'"', b"{", b"]", b"\\", b","))
    if kind == 5:
        return piece[::-1]
    return piece * random.choice((3, 50))
