"""Ends of sequences: idle ones, the death of a worker, and API keys that do not share them."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from tests.e2e.harness import Calls, config, serving, workers, write_servable
from tests.e2e.test_sequences import SOURCE, active, headers, infer_v2, number_of, rest
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


@pytest.mark.parametrize("is_new_version", [False, True], ids=["reload", "version"])
def test_a_sequence_ends_on_the_version_in_which_the_sequence_began(
    tmp_path: Path, is_new_version: bool
) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    (tmp_path / "toy" / "1").mkdir()
    with serving(tmp_path, config(tmp_path, "toy")) as calls:
        assert rest(calls, 1, "a", True) == [11]
        write_servable(tmp_path, "toy", SOURCE.replace("initial=10", "initial=100"))
        if is_new_version:
            (tmp_path / "toy" / "2").mkdir()
        server.load_servable("toy", reload=True)
        assert rest(calls, 1, "b", True) == [101]
        assert rest(calls, 1, "a") == [12]
        assert infer_v2(calls, 1, sequence_id="a") == 13
        assert len(workers(os.getpid())) == 2
        assert rest(calls, 1, "a", False, True) == [14]
        eventually(lambda: len(workers(os.getpid())) == 1)
        assert rest(calls, 1, "b") == [102]
        assert rest(calls, 1, "a", True) == [101]


def test_a_replaced_version_keeps_sequences_for_a_limited_time(tmp_path: Path) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    with serving(tmp_path, config(tmp_path, "toy", sequence_handover_seconds=0)) as calls:
        assert rest(calls, 1, "a", True) == [11]
        server.load_servable("toy", reload=True)
        eventually(lambda: "sequence 'a' is not known" in rest(calls, 1, "a"))
        eventually(lambda: len(workers(os.getpid())) == 1)


def test_workers_with_sequences_are_not_retired(tmp_path: Path) -> None:
    write_servable(tmp_path, "toy", SOURCE)
    options = {"num_parallel_workers": 0, "max_workers": 2, "requests_per_worker": 1}
    with serving(tmp_path, config(tmp_path, "toy", **options, scale_down_delay=0.3)) as calls:
        assert rest(calls, 1, "a", True) == [11]
        (first,) = workers(os.getpid())
        assert rest(calls, 1, "b", True) == [11]
        eventually(lambda: num_ready(calls) == 2)
        assert rest(calls, 1, "c", True) == [11]  # on the worker that has none
        assert rest(calls, [], "b", False, True) == rest(calls, [], "c", False, True) == []
        eventually(lambda: workers(os.getpid()) == [first])
        assert rest(calls, 1, "a") == [12]


def num_ready(calls: Calls) -> int:
    (row,) = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return sum(worker["state"] == "ready" for worker in row["workers"])


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
