"""`startup_agents` of llm-serving: a script starts the ranks of a model, an engine uses them."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.agent import agent_multi_post_method
from mindspore_serving.agent.agent_multi_post_method import startup_agents

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.export_mindir import export_mindir
from mindspore_serving.llm.runtimes import agents as agents_runtime
from mindspore_serving.llm.step import RunnerLost
from tests.e2e.harness import children, is_alive
from tests.llm import checkpoints
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
from multiprocessing import Queue
from mindspore_serving.agent.agent_multi_post_method import startup_agents

_, model, ranks = sys.argv
own = [f"{model}/rank_{rank}" for rank in range(int(ranks))] if ranks != "1" else [model]
prefill, decode = ([f"{one}/{name}.mindir" for one in own] for name in ("prefill", "decode"))
startup_queue = Queue(1024)
startup_agents("ctx.ini", ["inc.ini"], "post.ini", int(ranks), prefill, decode,
               [f"{model}/argmax.mindir"], [f"{model}/topk.mindir"], startup_queue,
               options={"kv_cache_memory": 4 << 20})
for _ in range(int(ranks)):
    print("agent : %f started" % startup_queue.get(), flush=True)
print("all agents started", flush=True)
"""
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of four layers."""
    return checkpoints.build("llama-deep", tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def halves(source: Path) -> Path:
    return exported(source, 2)


@pytest.fixture(scope="module")
def agents(halves: Path) -> Iterator[int]:
    """The script that has started two agents."""
    with running(halves, 2) as pid:
        yield pid


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents are waited for as long as they take on a machine that is busy."""
    monkeypatch.setattr(agents_runtime, "FIND_SECONDS", 10 * PATIENCE)


def exported(source: Path, ranks: int) -> Path:
    target = source.parent / f"cut-{ranks}"
    export_mindir(source, target, ranks)
    return target


@contextmanager
def running(model: Path, ranks: int) -> Iterator[int]:
    """The process of the script, once all agents are ready; they end with it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(model), str(ranks)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    processes: list[int] = []
    try:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(ranks + 1)]
        expected = [f"agent : {rank:f} started\n" for rank in range(ranks)]
        assert said == [*expected, "all agents started\n"]
        yield process.pid
        processes += started_by(process.pid)
    finally:
        process.kill()
        process.communicate()
    assert len(processes) == ranks
    eventually(lambda: not any(map(is_alive, processes)))


def started_by(script: int) -> list[int]:
    """The processes of agents that are there, agent 0 first."""
    first = [one for one in children(script) if is_alive(one)]
    return first + [rank for one in first for rank in children(one) if is_alive(rank)]


def check(llm: LLM, source: Path) -> None:
    prompts = checkpoints.prompts(3)
    answers = llm.generate([list(prompt) for prompt in prompts], GREEDY)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = answer.outputs[0].token_ids
        assert len(tokens) == 12
        assert tokens == checkpoints.likeliest(source, prompt, tokens)


@pytest.mark.long  # two ranks: test_agents_serve_a_single_engine_at_a_time
@pytest.mark.parametrize("ranks", [1, 4])
def test_agents_generate_the_tokens_of_the_whole_model(source: Path, ranks: int) -> None:
    model = exported(source, ranks)
    with running(model, ranks), LLM(model, "agents", max_num_seqs=4) as llm:
        check(llm, source)


def test_agents_serve_a_single_engine_at_a_time(agents: int, source: Path, halves: Path) -> None:
    with LLM(halves, "agents") as llm:
        with pytest.raises(StartError, match="another engine uses these agents"):
            LLM(halves, "agents")
        check(llm, source)
    with LLM(halves, "agents") as llm:
        check(llm, source)


def test_agents_of_a_model_start_once(agents: int, halves: Path) -> None:
    """An agent that comes twice is one error, and the first ones go on."""
    queue: Queue[object] = Queue()
    start(halves, queue)
    assert "already has agents" in str(queue.get(timeout=PATIENCE))
    assert len(started_by(agents)) == 2


def test_agents_are_restarted_after_a_kill(agents: int, source: Path, halves: Path) -> None:
    with LLM(halves, "agents") as llm:
        os.kill(started_by(agents)[1], signal.SIGKILL)
        with pytest.raises(RunnerLost):
            llm.generate([[5, 6]], GREEDY)
    with LLM(halves, "agents") as llm:
        check(llm, source)


def test_agents_that_hang_are_lost_to_their_engine(agents: int, halves: Path) -> None:
    first = started_by(agents)[0]
    with LLM(halves, "agents") as llm:
        llm._engine.runner._agents._stream.settimeout(1)  # type: ignore[union-attr]
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(RunnerLost, match="do not answer"):
            llm.generate([[5, 6]], GREEDY)
        os.kill(first, signal.SIGCONT)


def test_without_agents_the_engine_does_not_start(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_runtime, "FIND_SECONDS", 0)
    with pytest.raises(StartError, match="no agents run for .*; call startup_agents"):
        LLM(source, "agents")


def start(model: Path, queue: "Queue[object]") -> None:
    own = [str(model / f"rank_{rank}") for rank in range(2)]
    tokens = [str(model / f"{name}.mindir") for name in ("argmax", "topk")]
    startup_agents(None, None, None, 2, own, own, *tokens, queue)


def test_a_rank_that_cannot_load_puts_an_error_on_the_queue(halves: Path, tmp_path: Path) -> None:
    target = tmp_path / "cut"
    shutil.copytree(halves, target)
    file = target / "rank_1" / "decode.mindir"
    file.write_bytes(file.read_bytes()[:1000])
    queue: Queue[object] = Queue()
    start(target, queue)
    problem = queue.get(timeout=PATIENCE)
    assert isinstance(problem, StartError)
    assert "rank 1" in str(problem)
    assert "rank_1/decode.mindir cannot be loaded" in str(problem)


def test_an_agent_that_dies_at_startup_puts_a_single_error_on_the_queue(
    halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_multi_post_method, "MODULE", "tests.llm.agent_that_dies")
    queue: Queue[object] = Queue()
    start(halves, queue)
    problem = queue.get(timeout=PATIENCE)
    assert isinstance(problem, StartError)
    assert "ended by signal SIGKILL" in str(problem)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({3: 3}, "n_agents is 3, but there are 2 prefill_model"),
        ({3: 0}, "n_agents"),
        ({4: ["rank_0"]}, "1 prefill_model and 2 decode_model, expected one of each rank"),
        ({4: ["rank_1", "rank_0"]}, "a file of rank 0 is in .*/rank_1, expected it in .*/rank_0"),
        ({5: ["rank_0", "rank_0"]}, "a file of rank 1 is in .*/rank_0, expected it in .*/rank_1"),
        ({4: ["rank_0", "rank_7"]}, "rank_7 does not exist"),
        ({4: ["rank_0", "rank_1/prefil.mindir"]}, "prefil.mindir does not exist"),
        ({6: "argmaks.mindir"}, "argmax_model is 'argmaks.mindir', expected a file"),
        ({7: ["topk.mindir", "t"]}, "topk_model is 't', expected a file"),
        ({"options": {"blocks": 3}}, "there is no option 'blocks'"),
        ({"options": {"dtype": "bf16"}}, "dtype is 'bf16', the mindir runtime accepts auto and"),
    ],
)
def test_a_wrong_argument_raises_a_single_error(
    halves: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[object, object], problem: str
) -> None:
    monkeypatch.chdir(halves)
    own = ["rank_0/prefill.mindir", "rank_1/prefill.mindir"]
    given = [None, None, None, 2, own, ["rank_0", "rank_1"], "argmax.mindir", "topk.mindir", None]
    options = {key: value for key, value in changes.items() if isinstance(key, str)}
    for place in changes.keys() - options.keys():
        given[place] = changes[place]  # type: ignore[call-overload]
    with pytest.raises((InvalidInputs, StartError), match=problem):
        startup_agents(*given, **options)  # type: ignore[arg-type]
