"""A language model whose ranks are on several machines, which are processes at 127.0.0.2 and up.

Its tokens are those of one process; a machine that is lost costs its requests an error, and the
next ones are answered by the machines that are left.
"""

import json
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving import server
from mindspore_serving.llm import export_mindir
from mindspore_serving.server import ServableStartConfig
from tests.e2e.harness import children, eventually
from tests.e2e.machines import Cluster, Machine, all_end, kill
from tests.llm import chatty, checkpoints, seeing
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]
HITS = re.compile(r"^serving_llm_prefix_cache_store_hits_total\S* (\S+)", re.MULTILINE)
PROMPT = (66, 9, 120, 7, 301, 44)
OPTIONS = {"dtype": "f32", "num_threads": 1, "kv_cache_memory": 32 << 20, "max_num_seqs": 4}


def machines(made: Cluster, *slots: int) -> list[Machine]:
    """Machines with so many slots, each at an address of its own."""
    return [
        made.join(f"m{number}", "--slots", str(count), "--address", f"127.0.0.{number + 2}")
        for number, count in enumerate(slots)
    ]


def serve_model(made: Cluster, num_machines: int, *, family: str = "llama", **options: Any) -> Path:
    """Serve a tiny model over machines; return its directory."""
    with pytest.MonkeyPatch.context() as patch:
        build = checkpoints.build
        patch.setattr(checkpoints, "build", lambda _, place: build(family, place))
        path = chatty.build(made.directory, context=65536)
    server.start_servables(
        ServableStartConfig(
            str(made.directory), "chatty", rank_machines=num_machines,
            llm_options={**OPTIONS, **options},
        )
    )  # fmt: skip
    return path


def ask(
    made: Cluster, count: int = 12, prompt: Sequence[int] = PROMPT
) -> tuple[int, dict[str, Any]]:
    """Greedy tokens, as texts of their ids."""
    body = {
        "model": "chatty", "prompt": list(prompt), "max_tokens": count, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    status, answer = made.calls.http_call("POST", "/v1/completions", json.dumps(body).encode())
    return status, json.loads(answer)


def stream(made: Cluster, max_tokens: int = 60_000) -> Iterator[bytes]:
    """Lines of an answer that takes minutes by default."""
    body = {
        "model": "chatty", "prompt": list(PROMPT), "max_tokens": max_tokens, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    with closing(HTTPConnection("127.0.0.1", made.calls.http, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body))
        yield from connection.getresponse()


def hosts(machine: Machine) -> list[int]:
    """Hosts of ranks on a machine."""
    return [pid for pid in children(machine.pid) if b"host_process" in command(pid)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("runtime", "slots", "options"),
    [
        pytest.param("torch", (1, 1), {"pipeline_parallel": 2}, marks=pytest.mark.long),
        ("openvino", (1, 1, 1), {"pipeline_parallel": 3}),
        pytest.param("torch", (1, 1), {"tensor_parallel": 2}, marks=pytest.mark.long),
        pytest.param(
            "mindspore",
            (1, 1),
            {"pipeline_parallel": 2, "num_threads": None},
            marks=[pytest.mark.long, pytest.mark.mindspore],
        ),
        pytest.param(
            "openvino",
            (1, 1),
            {"pipeline_parallel": 2, "stage_layers": "2:1"},
            marks=pytest.mark.long,
        ),
        ("openvino", (2, 2), {"pipeline_parallel": 2, "tensor_parallel": 2}),
    ],
)
def test_tokens_over_machines_are_those_of_the_reference(start_cluster, runtime, slots, options):
    made = start_cluster(local_slots=0)
    joined = machines(made, *slots)
    path = serve_model(made, len(slots), runtime=runtime, **options)
    status, answer = ask(made)
    assert status == 200
    assert answer["choices"][0]["token_ids"] == list(checkpoints.greedy(path, PROMPT, 12))
    assert [len(hosts(machine)) for machine in joined] == [0] + [1] * (len(slots) - 1)


def test_blocks_of_machines_are_read_from_a_store(start_cluster, tmp_path):
    """The cache in memory is too small for all prompts; two streams, with steps in flight."""
    made = start_cluster(local_slots=0)
    machines(made, 1, 1)
    path = serve_model(
        made, 2, runtime="openvino", pipeline_parallel=2, pipeline_groups=2,
        prefix_cache_store=f"file://{tmp_path}", max_model_len=256, kv_cache_memory=400 << 10,
    )  # fmt: skip
    prompts = [[number, *PROMPT * 17] for number in range(2, 8)]  # of four blocks each

    def ask_all() -> list[list[int]]:
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda prompt: ask(made, prompt=prompt)[1], prompts))
        return [answer["choices"][0]["token_ids"] for answer in answers]

    def num_hits() -> float:
        return float(HITS.search(made.calls.http_call("GET", "/metrics")[1].decode())[1])

    tokens = ask_all()
    assert tokens == [list(checkpoints.greedy(path, tuple(prompt), 12)) for prompt in prompts]
    eventually(lambda: ask_all() == tokens and num_hits() > 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("slots", "options"),
    [((1, 1), {"tensor_parallel": 2}), ((2, 2), {"pipeline_parallel": 2, "tensor_parallel": 2})],
)
def test_whole_experts_over_machines_follow_counts_that_the_first_reads(
    start_cluster, tmp_path, slots, options
):
    made, counts = start_cluster(local_slots=0), tmp_path / "counts"
    counts.write_text(json.dumps({"layers": {"0": [9, 1, 1, 1], "1": [1] * 4, "2": [1] * 4}}))
    machines(made, *slots)
    options |= {"expert_parallel": True, "expert_counts": str(counts), "expert_replicas": 1}
    path = serve_model(made, len(slots), family="mixtral", runtime="openvino", **options)
    status, answer = ask(made)
    assert status == 200
    assert answer["choices"][0]["token_ids"] == list(checkpoints.greedy(path, PROMPT, 12))
    _, page = made.calls.http_call("GET", "/metrics")
    metric = rb'serving_llm_expert_tokens_total\{servable="chatty",version="1"\} (\d+)'
    match = re.search(metric, page)
    assert match
    assert int(match[1]) % (2 * checkpoints.LAYERS) == 0 < int(match[1])  # two experts a token


@pytest.mark.long
@pytest.mark.parametrize("division", ["pipeline_parallel", "tensor_parallel"])
def test_an_image_over_machines_is_answered_as_by_the_reference(start_cluster, division):
    made, picture = start_cluster(local_slots=0), seeing.image(1)
    machines(made, 1, 1)
    path = seeing.build(made.directory, "qwen2-vl")
    options = {**OPTIONS, "runtime": "openvino", division: 2}
    server.start_servables(
        ServableStartConfig(
            str(made.directory), "qwen2-vl", rank_machines=2, llm_options=options
        )
    )  # fmt: skip
    body = {
        "model": "qwen2-vl", "messages": seeing.chat("What is ", picture, "?"), "max_tokens": 12,
        "temperature": 0, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    encoded = json.dumps(body).encode()
    status, content = made.calls.http_call("POST", "/v1/chat/completions", encoded)
    assert status == 200, content
    answer = json.loads(content)
    expected = seeing.Reference(path, "qwen2-vl").greedy(answer["prompt_token_ids"], [picture], 12)
    assert answer["choices"][0]["token_ids"] == expected


@pytest.mark.long
@pytest.mark.mindspore
def test_mindir_files_are_divided_over_machines(start_cluster):
    pytest.importorskip("mindspore")
    made = start_cluster(local_slots=0)
    machines(made, 1, 1)
    source = chatty.build(made.directory, "source")
    target = made.directory / "chatty"
    assert export_mindir.main([str(source), str(target), "--ranks", "2"]) == 0
    options = {"kv_cache_memory": 32 << 20, "max_num_seqs": 4, "pipeline_parallel": 2}
    server.start_servables(
        ServableStartConfig(
            str(made.directory), "chatty", rank_machines=2,
            llm_options={"runtime": "mindir", **options},
        )
    )  # fmt: skip
    status, answer = ask(made)
    assert status == 200
    assert answer["choices"][0]["token_ids"] == list(checkpoints.greedy(source, PROMPT, 12))


def stages(machine: Machine) -> list[int]:
    """Ranks that hosts on a machine have started."""
    return [pid for host in hosts(machine) for pid in children(host) if b"rank" in command(pid)]


@pytest.mark.parametrize(
    ("victim", "number", "slots"),
    [
        # Both stages fit on the machine that is left.
        pytest.param("node", signal.SIGKILL, (2, 1), marks=pytest.mark.long),
        ("node", signal.SIGKILL, (1, 1)),  # one stage has all layers then
        pytest.param("rank", signal.SIGSTOP, (1, 1), marks=pytest.mark.long),
        ("host", signal.SIGSTOP, (1, 1)),
    ],
)
def test_ranks_of_a_lost_machine_are_placed_anew_after_an_error(
    start_cluster, victim, number, slots
):
    """Tokens are the same before and after."""
    made = start_cluster(local_slots=0)
    first, second = machines(made, *slots)
    serve_model(made, 2, runtime="openvino", pipeline_parallel=2)
    before = ask(made)
    assert before[0] == 200
    (host,), (rank,) = hosts(second), stages(second)
    lines = stream(made)
    assert b"choices" in next(lines)
    kill({"node": second.pid, "host": host, "rank": rank}[victim], number)
    assert b"died" in b"".join(lines)
    all_end([host, rank])
    after = eventually(lambda: one[1] if (one := ask(made))[0] == 200 else None)
    assert after["choices"] == before[1]["choices"]


def test_a_machine_that_leaves_lets_requests_of_its_ranks_finish(start_cluster):
    made = start_cluster(local_slots=0)
    _, second = machines(made, 2, 1)
    serve_model(made, 2, runtime="openvino", pipeline_parallel=2)
    lines = stream(made, max_tokens=400)
    assert b"choices" in next(lines)
    kill(second.pid, signal.SIGTERM)
    text = b"".join(lines)
    assert b"error" not in text
    assert text.rstrip().endswith(b"data: [DONE]")
    eventually(lambda: made.ready("chatty") == {"m0": 1})
    assert ask(made)[0] == 200
