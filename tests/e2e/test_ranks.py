"""A language model over ranks whose processes die or hang: all ranks end, requests are answered,
the next worker starts new ones, and no process stays behind."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.step import RunnerLost
from tests.e2e.harness import (
    Calls,
    children,
    config,
    eventually,
    is_alive,
    serving,
    workers,
    write_servable,
)
from tests.llm import chatty
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]
SOURCE = """
from mindspore_serving.llm import SamplingParams
from mindspore_serving.llm.parallel import runner

runner.PATIENCE = 5.0  # of this rank, the first one, with others
params = SamplingParams(max_tokens=60_000, ignore_eos=True)  # minutes of them
llm = register.declare_llm(
    "../chatty", runtime="{runtime}", dtype="f32", max_num_seqs=4, {options},
    kv_cache_memory=64 << 20, params=params,
)

@register.register_method(output_names=["text"])
def generate(prompt):
    return register.add_stage(llm, prompt, outputs_count=1)
"""


TENSOR, PIPELINE = {"tensor_parallel": 2}, {"pipeline_parallel": 2}
GROUPS = PIPELINE | {"pipeline_groups": 2, "num_threads": 1}  # with steps of both in flight
GRID = TENSOR | PIPELINE


def ranks_of(pid: int) -> list[int]:
    """The processes of the ranks that `pid` has started."""
    return [one for one in children(pid) if is_alive(one) and is_rank(one)]


def is_rank(pid: int) -> bool:
    try:
        return b"mindspore_serving.llm.runtimes.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def source(runtime: str = "openvino", **options: int) -> str:
    options = {"num_threads": 2} | options
    given = ", ".join(f"{name}={size}" for name, size in options.items())
    return SOURCE.format(runtime=runtime, options=given)


@pytest.fixture(scope="module")
def calls(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Calls]:
    """Two ranks that share every layer, or what a test says: runtime and options."""
    directory = tmp_path_factory.mktemp("ranks")
    chatty.build(directory, context=65536)
    runtime, options = getattr(request, "param", ("openvino", TENSOR))
    write_servable(directory, "cut", source(runtime, **options))
    before = set(children(os.getpid()))
    with serving(directory, config(directory, "cut")) as found:
        yield found
    assert not {one for one in children(os.getpid()) if is_alive(one)} - before


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients of a server that other tests share."""
    with ThreadPoolExecutor(8) as threads:
        yield threads


def ask(calls: Calls, **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"prompt": [66, 9], "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps(body).encode())
    return status, json.loads(answer)


@pytest.mark.parametrize(
    ("calls", "number", "place"),
    [
        (("torch", TENSOR), signal.SIGKILL, 0),
        pytest.param(("openvino", TENSOR), signal.SIGSTOP, 0, marks=pytest.mark.long),
        (("openvino", GROUPS), signal.SIGKILL, 0),
        pytest.param(("torch", PIPELINE), signal.SIGSTOP, 0, marks=pytest.mark.long),
        pytest.param(("torch", GRID), signal.SIGKILL, 2, marks=pytest.mark.long),
        (("openvino", GRID), signal.SIGSTOP, 2),
    ],
    indirect=["calls"],
)
def test_a_dead_or_hung_rank_ends_the_worker_and_the_next_serves(calls, number, place):
    """Streams that had output end with an error; it is found by heartbeat if it hangs."""
    expected = ask(calls)
    assert expected[0] == 200
    (worker,) = workers(os.getpid())
    ranks = ranks_of(worker)
    rank = ranks[place]
    streams = [calls.client("cut", "generate").infer_stream({"prompt": "x"}) for _ in range(3)]
    assert all("text" in next(pieces) for pieces in streams)
    os.kill(rank, number)
    assert all("died" in list(pieces)[-1]["error"] for pieces in streams)
    eventually(lambda: not any(map(is_alive, [*ranks, worker])))
    answer = eventually(lambda: one[1] if (one := ask(calls))[0] == 200 else None)
    assert answer["choices"] == expected[1]["choices"]
    (following,) = workers(os.getpid())
    assert following != worker
    assert len(ranks_of(following)) == len(ranks)


def test_a_rank_that_dies_while_nothing_runs_costs_no_request(calls, pool):
    expected = ask(calls)
    (worker,) = workers(os.getpid())
    os.kill(*ranks_of(worker), signal.SIGKILL)
    status, answer = pool.submit(ask, calls).result(PATIENCE)
    assert (status, answer["choices"]) == (200, expected[1]["choices"])
    assert not is_alive(worker)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_ranks_end_with_their_worker(calls, number):
    assert ask(calls)[0] == 200
    (worker,) = workers(os.getpid())
    (rank,) = ranks_of(worker)
    os.kill(worker, number)
    eventually(lambda: not is_alive(rank))


def test_offline_generation_ends_with_the_reason(tmp_path, pool):
    path = chatty.build(tmp_path, context=65536)
    params = SamplingParams(max_tokens=60_000, ignore_eos=True)
    with LLM(path, "openvino", tensor_parallel=2, dtype="f32", num_threads=2) as llm:
        (rank,) = ranks_of(os.getpid())
        answers = pool.submit(llm.generate, [[66, 9]], params)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(RunnerLost, match="rank 1: ended by signal SIGKILL"):
            answers.result(PATIENCE)
        with pytest.raises(RunnerLost, match="rank 1: ended by signal SIGKILL"):
            llm.generate([[66, 9]], params)
    assert not is_alive(rank)


def test_a_size_that_does_not_fit_is_a_single_start_error(tmp_path):
    chatty.build(tmp_path)
    write_servable(tmp_path, "cut", source(tensor_parallel=3))
    with (
        pytest.raises(RuntimeError, match="expected a divisor of the model's 4 attention heads"),
        serving(tmp_path, config(tmp_path, "cut")),
    ):
        pass
    assert not ranks_of(os.getpid())
