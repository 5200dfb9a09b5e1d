"""Ends of sequences: idle ones, the death of a worker, and API keys that do not share them."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import config, serving, workers, write_servable
from tests.e2e.test_sequences import SOURCE, active, headers, number_of, rest
from tests.waiting import PATIENCE, eventually


def test_an_idle_sequence_ends(tmp_path: Path) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    options = {"sequence_idle_seconds": 0.2, "max_sequence_bytes": 16}
    with serving(tmp_path, config(tmp_path, "toy", **options), front_ends=2) as calls:
        assert rest(calls, 1, "a", True) == [11]
        assert rest(calls, 1, "b", True) == [11]
        assert "(max_sequence_bytes, 8 for each)" in rest(calls, 1, "c", True)
        eventually(lambda: active(calls) == 0)
        assert "has ended: it was idle for over 0.2 s" in rest(calls, 1, "a")
        assert number_of(calls, "serving_sequences_evicted_total", 'reason="idle"') == 2


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_sequence_of_a_worker_that_died(tmp_path: Path, is_kept: bool) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    with serving(tmp_path, config(tmp_path, "toy", keep_sequences=is_kept)) as calls:
        assert rest(calls, [1, 1], "a", True) == [11, 12]
        (pid,) = workers(os.getpid())
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: workers(os.getpid()) not in ([pid], []))
        if is_kept:
            assert rest(calls, 1, "a") == [13]
            assert "died" in rest(calls, 2000, "a")  # kills every worker that runs it
            assert rest(calls, 1, "a", False, True) == [14]
        else:
            eventually(lambda: rest(calls, 1, "b", True) == [11])
            text = rest(calls, 1, "a")
            assert "was lost: its worker process has ended; begin one with" in text
            assert rest(calls, 1, "a", True) == [11]
            assert "died" in rest(calls, 2000, "a")
            assert "was lost" in rest(calls, 1, "a")


def test_keys_do_not_share_sequences(tmp_path: Path) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    with serving(
        tmp_path, config(tmp_path, "toy", cache_mb=1), api_keys=["the-first-key", "the-second-key"]
    ) as calls:

        def ask(key: str, start: bool) -> Any:
            fields = {"Authorization": f"Bearer {key}", **headers("a", start)}
            return calls.post("toy", "count", [{"x": 1}], fields)

        assert ask("the-first-key", True) == {"instances": [{"total": 11}]}
        assert "is not known" in ask("the-second-key", False)["error_msg"]
        client = calls.client("toy", "count", api_key="the-second-key", timeout=PATIENCE)
        assert int(client.sequence("a").infer({"x": 4})[0]["total"]) == 14
        assert ask("the-first-key", False) == {"instances": [{"total": 12}]}


def test_kept_sequences_lose_no_step_when_workers_are_killed(tmp_path: Path) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    options = {"keep_sequences": True, "num_parallel_workers": 2}
    with serving(tmp_path, config(tmp_path, "toy", **options)) as calls:
        totals: dict[int, list[int]] = {number: [] for number in range(1, 9)}
        is_over = threading.Event()

        def run(number: int) -> None:
            with calls.client("toy", "count").sequence() as sequence:
                while not is_over.is_set():
                    rows = sequence.infer([{"x": number}, {"x": number}])
                    totals[number] += [int(row["total"]) for row in rows]

        threads = [threading.Thread(target=run, args=(number,)) for number in totals]
        for thread in threads:
            thread.start()
        for _ in range(2):
            target = 200 + sum(map(len, totals.values()))
            eventually(lambda target=target: sum(map(len, totals.values())) > target)
            os.kill(workers(os.getpid())[0], signal.SIGKILL)
        least = 20 + max(map(len, totals.values()))
        eventually(lambda: min(map(len, totals.values())) > least)
        is_over.set()
        for thread in threads:
            thread.join()
        for number, served in totals.items():
            assert served == [10 + number * step for step in range(1, len(served) + 1)]
        assert active(calls) == 0
