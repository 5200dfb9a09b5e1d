"""`python -m tests.fuzz.frame_campaign --sequences 1000000 --seed 1`: send edited sequences of
HTTP/2 frames to a server in this process, over sockets, and report what is wrong.

Each sequence has a connection of its own, which has to end; the server has to hold nothing then, to
log no error, and to write frames that a client can read.
"""

import argparse
import asyncio
import gc
import logging
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpack
import psutil
from tqdm import tqdm

from mindspore_serving import log
from mindspore_serving.aio import BackgroundLoop, within
from mindspore_serving.frontends.http2.frames import PREFACE
from tests.frontends.grpc.interop.service import Interop
from tests.fuzz.frames import DATA, GOAWAY, HEADERS, RST, SETTINGS, Frame, Maker
from tests.waiting import PATIENCE

LANES, BLOCK = 24, 500
GROWTH = 48 << 20  # bytes that the process may have grown by after the first blocks
LEFT = 2_000  # objects that may be left over, of all sequences together
MANY = 10_000  # sequences, of which growth is a finding: fewer only fill caches
_PING = b"last one"
_MARK = Frame(6, 0, 0, _PING).to_bytes()
_KINDS = 10


@dataclass(slots=True)
class Report:
    """What was sent, and what is wrong: the number of a sequence, and the problem."""

    num_sent: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    growth: int = 0
    left: int = 0


class FrameCampaign:
    """Sends sequences of a seed to a server."""

    def __init__(self, served: Interop, seed: int, logged: list[str]) -> None:
        """Create a campaign; `logged` gets the errors that are logged."""
        self._served, self._seed, self.report = served, seed, Report()
        self._running: set[int] = set()
        self._logged = logged

    async def run(self, numbers: Sequence[int], on_block: Any = lambda _: None) -> None:
        """Send the sequences of `numbers`, several at once."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._logged.append(str(context)))
        for start in range(0, len(numbers), BLOCK):
            waiting = iter(numbers[start : start + BLOCK])
            await asyncio.gather(*(self._drive(waiting) for _ in range(LANES)))
            await self._look(numbers[start])
            on_block(min(BLOCK, len(numbers) - start))
        loop.set_exception_handler(None)

    async def _drive(self, waiting: Iterable[int]) -> None:
        loop = asyncio.get_running_loop()
        for number in waiting:
            began = loop.time()
            data = Maker(self._seed, number).make()
            try:
                answer = await within(PATIENCE, self._exchange(number, data))
            except TimeoutError:
                self.report.findings.append((number, "the connection does not end"))
                continue
            self.report.num_sent += 1
            self.report.slowest = max(self.report.slowest, (loop.time() - began, number))
            try:
                self.report.ends[end_of(answer)] += 1
            except Exception as error:
                self.report.findings.append((number, f"the answer is malformed: {error!r}"))

    async def _exchange(self, number: int, data: bytes) -> bytes:
        """Send a sequence, and return all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._served.port)
        received = bytearray()
        with suppress(ConnectionError):
            is_patient = number & 1 and data.startswith(PREFACE)
            writer.write(data + _MARK if is_patient else data)
            if is_patient:  # let it answer; a cut frame may have swallowed the ping
                with suppress(TimeoutError):
                    await within(0.03, _read_until_ping(reader, received))
            writer.write_eof()
            received += await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return bytes(received)

    async def _look(self, first: int) -> None:
        """Note what the server holds or has logged, and whether it still answers."""
        served, where = self._served, f"{first} and {BLOCK - 1} more"
        shared = served.server.shared
        for _ in range(2_000):
            if not shared.connections:
                break
            await asyncio.sleep(0.005)
        held = {
            "connections": len(shared.connections),
            "bytes of bodies": shared.memory.used,
            "streams": shared.streams.used,
            "unsent answers": len(shared.unsent._connections),
        }
        problems = [f"{count} {name} are left" for name, count in held.items() if count]
        problems += [f"logged: {text}" for text in self._logged]
        self._logged.clear()
        served.inference.calls.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        if not (await within(PATIENCE, reader.read(100))).startswith(b"HTTP/1.1 200"):
            problems.append("no right answer any more")
        writer.close()
        self.report.findings += [(first, f"{where}: {problem}") for problem in problems]


async def _read_until_ping(reader: asyncio.StreamReader, received: bytearray) -> None:
    while _PING not in received:
        part = await reader.read(1 << 16)
        if not part:
            break
        received += part


@contextmanager
def _collecting(texts: list[str]) -> Iterator[None]:
    """Log errors to `texts`, and nothing elsewhere."""
    log.set_level("3")  # makes the logger
    logger = logging.getLogger("mindspore_serving")
    handlers, logger.handlers = logger.handlers, [_Collector(texts)]
    try:
        yield
    finally:
        logger.handlers = handlers
        log.set_level(None)


class _Collector(logging.Handler):
    """Keeps the text of errors, with their tracebacks."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(logging.Formatter().format(record))


def end_of(answer: bytes) -> str:
    """How a connection ended: the code of GOAWAY, or nothing; checks all frames of the answer."""
    if not answer or answer.startswith(b"HTTP/1.1 "):
        return "HTTP/1.1" if answer else "nothing"
    decoder, code, ended = hpack.Decoder(max_header_list_size=1 << 20), "open", set()
    position, first = 0, True
    while position < len(answer):
        word, flags, stream = struct.unpack_from(">IBI", answer, position)
        size, kind = word >> 8, word & 0xFF
        payload = answer[position + 9 : position + 9 + size]
        position += 9 + size
        assert len(payload) == size, "a frame is cut"
        assert kind < _KINDS
        assert kind == SETTINGS or not first, "the first frame is not SETTINGS"
        first = False
        if kind in (HEADERS, DATA):
            assert stream & 1
            assert stream not in ended, "a frame follows the end of its stream"
            if kind == HEADERS and flags & 4:
                fields = decoder.decode(payload, raw=True)
                assert fields
            if flags & 1:
                ended.add(stream)
        elif kind == RST:
            assert stream & 1 or not stream
            ended.add(stream)
        elif kind == GOAWAY:
            assert size < 1000
            code = f"GOAWAY {int.from_bytes(payload[4:8], 'big')}"
    return code


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frame_campaign")
    parser.add_argument("--sequences", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), metavar="DIRECTORY")
    options = parser.parse_args(arguments)
    background = BackgroundLoop()
    with closing(Interop(background, linger_timeout=0.1)) as served:
        report = run(served, options.seed, range(options.first, options.first + options.sequences))
    background.close()
    for number, problem in report.findings:
        path = options.out / "frames" / f"{options.seed}-{number}.h2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Maker(options.seed, number).make())
        print(f"{path}: {problem}")
    print(f"{report.num_sent} sequences, seed {options.seed}: {len(report.findings)} findings")
    print(", ".join(f"{end}: {count}" for end, count in report.ends.most_common()))
    print(f"slowest {report.slowest[0]:.2f} s ({report.slowest[1]}), ", end="")
    print(f"{report.growth >> 10} KiB and {report.left} objects more than after a tenth")
    return int(bool(report.findings))


def run(served: Interop, seed: int, numbers: Sequence[int]) -> Report:
    """Send sequences; measure after a tenth of them and at the end."""
    logged: list[str] = []
    running = FrameCampaign(served, seed, logged)
    cut, total = max(1, len(numbers) // 10), len(numbers)
    bar = tqdm(total=total, unit="sequence", smoothing=0.05, mininterval=5)
    with bar, _collecting(logged):
        served.background.run(running.run(numbers[:cut], bar.update))
        before = _measured()
        served.background.run(running.run(numbers[cut:], bar.update))
    after, report = _measured(), running.report
    report.growth, report.left = after[0] - before[0], after[1] - before[1]
    if len(numbers) >= MANY and (report.growth > GROWTH or report.left > LEFT):
        report.findings.append((numbers[0], f"{report.growth} bytes, {report.left} objects more"))
    return report


def _measured() -> tuple[int, int]:
    gc.collect()
    return psutil.Process().memory_info().rss, len(gc.get_objects())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
