"""Blocks as the values of a store: their seals, and their compression.

The tag tells whether a block is compressed by zstd.  Nothing is decompressed before the check of
its seal, and never to more bytes than a block has.
"""

from collections.abc import Callable
from time import perf_counter

from mindspore_serving.stores.sealing import HEAD_BYTES, PLAIN, Seal

_MAGIC, _ZSTD = b"MSKV002", b"\1"
COMPRESSIONS = ("auto", "none", "zstd")
_LEVEL = 1  # of zstd: higher ones make keys and values hardly smaller
_TRIALS = 64  # blocks from one measurement of the compression to the next
_RATE = 0.2  # part of a new measurement of the wire in its mean


class Compression:
    """Choice whether blocks are compressed: with "auto", if that is faster than the wire.

    A block is compressed if the bytes that this saves would take longer on the wire than to
    compress and decompress it takes.
    """

    def __init__(self, mode: str = "none", clock: Callable[[], float] = perf_counter) -> None:
        self._mode, self._clock = mode, clock
        self._num_blocks = 0
        self._wire = 0.0  # bytes per second
        self._gain = 0.0  # bytes saved in a second of compressing and decompressing

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from a transfer of a block how fast the wire is."""
        rate = num_bytes / max(seconds, 1e-9)
        self._wire += (rate - self._wire) * (_RATE if self._wire else 1.0)

    def compress(self, block: memoryview) -> bytes | None:
        """Return the compressed block; None if it is to be sent as it is."""
        if self._mode == "none":
            return None
        is_trial = self._mode == "auto" and self._num_blocks % _TRIALS == 0
        self._num_blocks += 1
        if not (is_trial or self._mode == "zstd" or self._gain > self._wire > 0):
            return None
        import zstandard

        began = self._clock()
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(block)
        saved = len(block) - len(data)
        if is_trial:
            zstandard.ZstdDecompressor().decompress(data)
            self._gain = saved / max(self._clock() - began, 1e-9)
            if not self._wire or self._gain <= self._wire:
                return None
        return data if saved > 0 else None


def _decompressed(data: memoryview, num_bytes: int) -> memoryview | None:
    """Return the block in `data`; None unless that has the right size."""
    import zstandard

    try:
        if zstandard.frame_content_size(data) != num_bytes:
            return None
        return memoryview(zstandard.ZstdDecompressor().decompress(data))
    except zstandard.ZstdError:
        return None


class BlockValues:
    """Names and values of the blocks of one model.

    Args:
        model: everything that the blocks depend on besides their tokens.
        block_bytes: size of a block.
        secret: of those who may write to the store; with b"", a check only finds damage.
        compression: choice for the values that are written; values of both kinds can be read.
    """

    def __init__(
        self,
        model: bytes,
        block_bytes: int,
        secret: bytes = b"",
        compression: Compression | None = None,
    ) -> None:
        self.seal = Seal(_MAGIC, model, secret)
        self._block_bytes = block_bytes
        self.max_bytes = HEAD_BYTES + block_bytes
        self.compression = compression or Compression()

    def name(self, digest: bytes) -> str:
        """Return the name of the block with the hash `digest`, 32 hexadecimal digits."""
        return self.seal.name(digest)

    def pack(self, name: str, block: memoryview) -> tuple[bytes, bytes | memoryview]:
        """Return the head of the value and the rest of it."""
        data = self.compression.compress(block)
        content, tag = (block, PLAIN) if data is None else (data, _ZSTD)
        return self.seal.head(name, content, tag), content

    def unpack(self, name: str, value: bytes | bytearray) -> memoryview | None:
        """Return the block in a value; None if the value is damaged, forged or of another name."""
        opened = self.seal.open(name, value)
        if opened is None:
            return None
        tag, content = opened
        if tag == _ZSTD:
            return _decompressed(content, self._block_bytes)
        return content if tag == PLAIN and len(content) == self._block_bytes else None
