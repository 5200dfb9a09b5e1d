"""Chunks a second of Silero VAD: streams served as sequences, beside a loop of ONNX Runtime.

    python -m benchmarks.sequences [--streams 1 8 64 512] [--chunks 1 31] [--seconds 5]

The loop runs one chunk after another in one thread, with the state carried by hand.  Each stream is
a connection that sends its next request, of `--chunks` chunks, after the answer to the one before.
Both are measured in turns; the processor time is that of all processes but the clients.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import running
from benchmarks.processor_time import server_time

PORT = 18_520
CHUNK, CONTEXT, RATE = 512, 64, 16_000
EXAMPLE = Path(__file__).parents[1] / "examples" / "silero_vad"
MODEL = EXAMPLE / "silero_vad" / "1" / "silero_vad.onnx"
_OK = b"HTTP/1.1 200"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 31], help="in a request")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    if not MODEL.exists():
        sys.exit("the model is missing: python examples/silero_vad/export_model.py")
    servable = str(EXAMPLE / "silero_vad")
    command = [sys.executable, "-m", "mindspore_serving", "serve", servable, "--no-grpc"]
    command += ["--http-port", str(PORT)]
    print("streams  chunks/request   served/s    loop/s  ratio   us/chunk of CPU: served, loop")
    with running("sequences", command, _is_ready):
        for count in options.chunks:
            for streams in options.streams:
                loop, loop_cpu = _loop(options.seconds)
                begin = server_time()
                num_served, passed = asyncio.run(_serve(streams, count, options.seconds))
                cpu, served = 1e6 * (server_time() - begin) / num_served, num_served / passed
                print(
                    f"{streams:7d}  {count:14d} {served:10.0f} {loop:9.0f} {served / loop:6.2f}"
                    f"   {cpu:6.0f} {loop_cpu:6.0f}",
                    flush=True,
                )


def _is_ready() -> bool:
    import http.client

    try:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False


def _loop(seconds: float) -> tuple[float, float]:
    """Return the chunks a second of a loop, and its microseconds of processor time for each."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(MODEL), options)
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(RATE)
    sound = np.random.default_rng(0).standard_normal((1, CHUNK + CONTEXT)).astype(np.float32) / 10
    count, used, begin = 0, time.process_time(), time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        _, state = session.run(None, {"input": sound, "state": state, "sr": rate})
        count += 1
    return count / passed, 1e6 * (time.process_time() - used) / count


async def _serve(streams: int, count: int, seconds: float) -> tuple[int, float]:
    """Return the number of chunks of all streams, and the seconds until the last answer."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    end = begin + seconds
    clients = [_Stream(number + 1, count, end) for number in range(streams)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", PORT)
    await asyncio.gather(*(client.done for client in clients))
    return sum(client.num_answers for client in clients) * count, loop.time() - begin


class _Stream(asyncio.Protocol):
    """Client of one sequence, which ends it after `end`."""

    def __init__(self, number: int, count: int, end: float) -> None:
        sound = np.random.default_rng(number).standard_normal((count, CHUNK)) / 10
        self._tensor = sound.astype(np.float32).tobytes()
        self._shape, self._number, self._end = [count, CHUNK], number, end
        self._later = self._request()
        self._answer = bytearray()
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.num_answers = 0
        self._is_last = False

    def _request(self, **flags: bool) -> bytes:
        tensor = {"name": "chunk", "datatype": "FP32", "shape": self._shape}
        tensor["parameters"] = {"binary_data_size": len(self._tensor)}
        parameters = {"sequence_id": self._number, "binary_data_output": True, **flags}
        head = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        lines = [
            "POST /v2/models/silero_vad/infer HTTP/1.1",
            "host: 127.0.0.1",
            f"inference-header-content-length: {len(head)}",
            f"content-length: {len(head) + len(self._tensor)}",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + self._tensor

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request(sequence_start=True))

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, separator, body = bytes(self._answer).partition(b"\r\n\r\n")
        if not separator:
            return
        fields = head.lower().partition(b"content-length:")[2]
        if len(body) < int(fields.split(b"\r\n")[0]):
            return
        if not head.startswith(_OK):
            self.done.set_exception(RuntimeError(f"{head!r} {body!r}"))
            return
        self._answer.clear()
        self.num_answers += 1
        if self._is_last:
            self._transport.close()
            self.done.set_result(None)
        elif self._loop.time() >= self._end:
            self._is_last = True
            self._transport.write(self._request(sequence_end=True))
        else:
            self._transport.write(self._later)


if __name__ == "__main__":
    main()
