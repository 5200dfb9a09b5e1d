"""Memory that a real cache gives back when the machine, as files of a test describe it, has none
left."""

import ctypes
import threading
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.core.sampling_params import Generated, SamplingParams
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.runtimes.capacity import SHARE_OF_MEMORY
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.serving.engine_loop import EngineLoop, LoopCallbacks
from mindspore_serving.llm.serving.memory_monitor import MemoryMonitor
from mindspore_serving.llm.serving.memory_target import CALM_SECONDS
from mindspore_serving.llm.step import CacheMemory
from tests.llm import chatty
from tests.llm.machine import set_memory
from tests.llm.toy import ToyRunner
from tests.waiting import PATIENCE

CACHE, CONTEXT = 64 << 20, 1 << 15
TOTAL = 16 << 30
RUNTIMES = ["openvino", "torch"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatty.build(tmp_path_factory.mktemp("memory"), context=CONTEXT)


class Served:
    """An engine on its loop, and a monitor that reads the files of `root`."""

    def __init__(self, directory: Path, runtime: str, root: Path) -> None:
        options = {
            "dtype": "f32",
            "kv_cache_memory": CACHE,
            "max_num_batched_tokens": 4096,
            "num_speculative_tokens": 0,
        }
        _, engine = open_ours(directory, runtime, make_config(options))
        assert isinstance(engine, Engine)
        self.root, self.engine, self.memory = root, engine, engine.memory
        self._tokens: dict[str, list[int]] = {}
        self._open: set[str] = set()
        self._changed = threading.Condition()
        self.loop = EngineLoop(engine, LoopCallbacks(self._take, _ignore, _ignore))
        self.loop.start()
        self.set_memory(TOTAL // 2)
        self.monitor = MemoryMonitor(self.loop, self.memory, root)

    def set_memory(self, available: int, stalled: float = 0.0) -> None:
        set_memory(self.root, total=TOTAL, available=available, stalled=stalled)

    def ask(self, name: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self._tokens[name] = []
        self._open.add(name)
        self.loop.post(name, lambda engine: engine.add(name, prompt, params))

    def wait_for(self, name: str, count: int = CONTEXT) -> list[int]:
        """The tokens of the answer, when there are `count` or it has ended."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self._tokens[name]) >= count or name not in self._open, PATIENCE
            )
            return list(self._tokens[name])

    def answer(self, name: str, prompt: list[int], max_tokens: int = 4) -> list[int]:
        self.ask(name, prompt, max_tokens)
        return self.wait_for(name)

    def _take(self, outputs: Any) -> None:
        with self._changed:
            for name, generated in outputs:
                if isinstance(generated, Generated):
                    self._tokens[name] += generated.token_ids
                    if generated.finish_reason is not None:
                        self._open.discard(name)
            self._changed.notify_all()


def _ignore(_: object) -> None: ...


@pytest.fixture(params=RUNTIMES)
def served(directory: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    served = Served(directory, request.param, tmp_path)
    yield served
    served.monitor.close()
    served.loop.close()


def prompts(count: int, length: int) -> list[list[int]]:
    return [[(index * 7919 + at * 31) % 500 + 6 for at in range(length)] for index in range(count)]


def resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_cached_prompts_are_given_back_when_memory_is_short(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = prompts(32, length=1000)
    expected = served.answer("first", first)
    for index, prompt in enumerate(others):
        served.ask(f"other {index}", prompt, 1)
    for index in range(len(others)):
        served.wait_for(f"other {index}")
    served.monitor.check(0.0)
    used, before = served.memory.used, resident()
    assert used > CACHE // 3
    assert served.memory.num_released == 0

    served.set_memory(available=TOTAL // 100)
    served.monitor.check(1.0)
    assert served.memory.used == 0
    assert served.memory.num_released == used == served.engine.stats().num_cache_bytes_released
    assert before - resident() > used * 0.8
    logged = capsys.readouterr().err
    assert "memory is short (172 MB of 17,180 MB are available" in logged
    assert "the prefix cache gave back" in logged

    assert served.answer("first again", first) == expected  # computed again


def test_a_sequence_that_runs_is_unharmed_by_a_cache_that_gives_back(served: Served) -> None:
    first, second = prompts(2, length=600)
    expected = served.answer("undisturbed", first, 200)
    served.answer("cached", second)
    served.ask("disturbed", first, 200)
    now, count = 0.0, 1
    while count < 200:
        served.wait_for("disturbed", count)
        served.set_memory(available=TOTAL // 2, stalled=50.0)
        served.monitor.check(now)
        now, count = now + 20.0, count + 20
    assert served.wait_for("disturbed") == expected
    assert served.memory.num_released > 0


def test_the_cache_grows_again_after_a_shortage(served: Served) -> None:
    served.set_memory(available=0)
    served.monitor.check(0.0)
    served.set_memory(available=TOTAL // 2)
    served.monitor.check(CALM_SECONDS)
    (prompt,) = prompts(1, length=1000)
    served.answer("first", prompt)
    hits = served.engine.stats().num_cache_hits
    served.answer("again", prompt)
    assert served.engine.stats().num_cache_hits > hits + 900
    assert served.memory.num_released == 0


def test_a_machine_that_does_not_tell_is_an_error(served: Served) -> None:
    (served.root / "proc/meminfo").write_text("")
    with pytest.raises(StartError, match="has no MemTotal and MemAvailable"):
        served.monitor.check(0.0)


def test_models_of_a_server_share_the_default(directory: Path, tmp_path: Path) -> None:
    _, engine = open_ours(directory, "openvino", make_config({"dtype": "f32"}))
    assert isinstance(engine, Engine)
    memory = engine.memory
    shared = int(read_main_memory().total * SHARE_OF_MEMORY)
    assert memory.divided_by(1) == memory.max_kept
    assert memory.divided_by(100) == shared // 100 < memory.max_kept
    engine.close()


def test_a_cache_takes_its_part_of_a_shared_default(tmp_path: Path) -> None:
    runner = ToyRunner(num_blocks=8)
    runner.cache_memory = CacheMemory(1 << 20, shared_bytes=8 << 20, can_release=True)
    engine = Engine(runner, None, EngineConfig())
    loop = EngineLoop(engine, LoopCallbacks(_ignore, _ignore, _ignore))
    loop.start()
    set_memory(tmp_path, total=TOTAL, available=TOTAL // 2)
    monitor = MemoryMonitor(loop, engine.memory, tmp_path)
    for count, target in ((1, 8 << 20), (2, 4 << 20), (3, 2 << 20), (1, 8 << 20)):
        monitor.num_sharing = count
        monitor.check(0.0)
        assert engine.stats().num_cache_bytes_target == target
    loop.close()


def test_kv_cache_memory_is_not_shared(served: Served) -> None:
    assert served.memory.divided_by(100) == served.memory.max_kept
