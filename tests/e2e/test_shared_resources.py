"""Two servables that share a device never run at once, and both get their turns."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.harness import Calls, config, eventually, serving, workers, write_servable
from tests.waiting import PATIENCE

SOURCE = """
def run(x):
    log = os.open("log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, b"NAME+ ")
    time.sleep(0.002)
    os.write(log, b"NAME- ")
    os.close(log)
    return x

@method("y")
def predict(x):
    return run(x)
"""


def send(calls: Calls, servable: str, count: int) -> None:
    client = calls.client(servable, "predict")
    for number in range(count):
        answer = client.infer({"x": number})
        assert answer == [{"y": number}], answer


def test_servables_of_a_device_take_turns_even_when_a_worker_dies(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_servable(tmp_path, name, SOURCE.replace("NAME", name))
    configs = [config(tmp_path, name, resources={"npu0": 1}) for name in ("a", "b")]
    with serving(tmp_path, *configs) as calls, ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(send, calls, name, 20) for name in "ab" for _ in range(4)]
        for future in sent:
            future.result(PATIENCE)
        events = Path("log.txt").read_text().split()
        assert sorted(set(events)) == ["a+", "a-", "b+", "b-"]
        assert len(events) == 2 * 160
        begins, ends = events[::2], events[1::2]
        assert [event[0] + "-" for event in begins] == ends  # none begins while another runs
        first, last = begins.index("b+"), 159 - begins[::-1].index("a+")
        assert (first < 120, last > 40) == (True, True)  # neither waits for all of the other
        for pid in workers(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(workers(os.getpid())) == 2)
        send(calls, "a", 1)
        send(calls, "b", 1)
