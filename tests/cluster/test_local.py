"""Worker processes of this machine: their channel, their log, and how they end."""

import asyncio
import os
import re
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from mindspore_serving.cluster import local
from mindspore_serving.cluster.local import LocalLauncher
from mindspore_serving.cluster.worker_process import EarlyProcess
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.ipc.messages import Setup, ToMaster
from mindspore_serving.process import child_log
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.vocabulary import Exit, Hello, Leaving, Ready
from tests.waiting import PATIENCE, eventually

CONFIG = """
import os
from mindspore_serving.server import register

@register.register_method(output_names=["y"])
def same(x):
    return x
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The current directory of master and workers."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
async def launch(directory):
    """Start a worker process; what still runs is ended after the test."""
    started = []

    async def start(log_name="log_tiny"):
        started.append(await LocalLauncher().launch("servable name:tiny", log_name))
        return started[-1]

    yield start
    for launched in started:
        launched.process.kill()
        await launched.process.wait()
        launched.stream.close()
        launched.arena.close()
        launched.view.close()


def load(launched, directory, config=CONFIG):
    """Have it load a servable_config.py."""
    (directory / "tiny").mkdir(exist_ok=True)
    (directory / "tiny" / "servable_config.py").write_text(config)
    values = [str(directory), "tiny", 0, "none", None, True, None, "AES-GCM", False, {}]
    launched.stream.sendall(encode(Setup(*values)))


async def hear(launched):
    """Its next message after `Hello`; one at a time."""
    launched.stream.setblocking(False)
    frames, loop = message_decoder(ToMaster), asyncio.get_running_loop()
    while True:
        data = await asyncio.wait_for(loop.sock_recv(launched.stream, 1 << 16), PATIENCE)
        assert data, "the worker is gone"
        for message in frames.feed(data):
            if not isinstance(message, Hello):
                return message


async def wait(process):
    return await asyncio.wait_for(process.wait(), PATIENCE)


async def test_a_worker_starts_loads_and_leaves(launch, directory):
    launched = await launch()
    load(launched, directory)
    assert isinstance(await hear(launched), Ready)
    launched.stream.sendall(encode(Exit()))
    assert await wait(launched.process) == 0


@pytest.fixture
def early(directory, monkeypatch):
    """The place of a process that is started early; one that is left is killed."""
    place = EarlyProcess()
    monkeypatch.setattr(local, "early", place)
    yield place
    place.end()


async def test_an_early_process_of_the_same_name_is_taken(early, launch, directory):
    early.start("servable name:tiny", "log_tiny", ["--model", str(directory / "none.gguf")])
    pid = early.pid
    launched = await launch()
    assert (launched.process.pid, early.pid) == (pid, None)
    load(launched, directory)
    assert isinstance(await hear(launched), Ready)
    assert (await launch()).process.pid != pid


@pytest.mark.parametrize("difference", ["name", "environment", "death"])
async def test_an_early_process_that_differs_is_ended(early, launch, monkeypatch, difference):
    name = "servable name:other" if difference == "name" else "servable name:tiny"
    early.start(name, "log_tiny", ["--model", "none.gguf"])
    pid = early.pid
    if difference == "environment":
        monkeypatch.setenv("MINDSPORE_SERVING_LOG_LEVEL", "debug")
    if difference == "death":
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: early.pid is None)
    assert (await launch()).process.pid != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_worker_leads_its_own_process_group(launch):
    process = (await launch()).process
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)


async def test_kill_ends_a_worker_and_may_be_repeated(launch):
    process = (await launch()).process
    process.kill()
    assert await wait(process) == -signal.SIGKILL
    process.kill()


async def test_everybody_who_waits_gets_the_status(launch):
    process = (await launch()).process
    waiting = asyncio.gather(process.wait(), process.wait())
    process.kill()
    assert await waiting == [-signal.SIGKILL, -signal.SIGKILL]
    assert await wait(process) == -signal.SIGKILL


async def test_children_of_a_dead_worker_end_with_the_worker(launch, directory):
    launched = await launch()
    load(
        launched,
        directory,
        CONFIG + "import subprocess\nsubprocess.Popen(['sleep', '600'])\nos._exit(3)\n",
    )
    group = launched.process.pid
    assert await wait(launched.process) == 3
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and is_running(pid, group)]


def is_running(pid, group):
    """Whether process `pid` is of process group `group` and no zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, IndexError):
        return False
    return fields[2] == str(group) and fields[0] != "Z" and not is_dying(pid)


def is_dying(pid):
    """Whether SIGKILL is on its way: the kernel may need a moment for the rest."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = [line.split()[1] for line in text.splitlines() if line.startswith("ShdPnd")]
    return bool(int(pending[0], 16) & 1 << (signal.SIGKILL - 1))


async def test_the_output_goes_to_a_log_file_of_its_own(launch, directory):
    launched = await launch("log_tiny_device0_version1")
    load(launched, directory, "print('hello from the servable')\n" + CONFIG)
    await hear(launched)
    path = directory / "serving_logs" / "log_tiny_device0_version1.log"
    eventually(lambda: path.exists() and "hello from the servable" in path.read_text())


@pytest.mark.parametrize(
    ("output", "tail"),
    [("no such key", "no such key"), ("x" * 5000 + "no such key", "x" * 1988 + "no such key")],
    ids=["short", "long"],  # 2000 bytes with the end of the line
)
async def test_the_tail_of_the_log_is_the_end_of_its_own_output(launch, directory, output, tail):
    path = directory / "serving_logs" / "log_tiny.log"
    path.parent.mkdir()
    path.write_text("of an earlier worker\n")
    launched = await launch()
    load(launched, directory, f"import os\nprint({output!r}, flush=True)\nos._exit(3)\n")
    assert await wait(launched.process) == 3
    assert launched.process.log_tail() == tail
    assert path.read_text().startswith("of an earlier worker\n")


async def test_log_tail_is_empty_without_a_directory_for_logs(launch, directory):
    (directory / "serving_logs").write_text("not a directory")
    launched = await launch()
    load(launched, directory)
    assert isinstance(await hear(launched), Ready)
    assert launched.process.log_tail() == ""


async def test_a_worker_that_is_told_to_go_says_so(launch, directory):
    launched = await launch()
    load(launched, directory)
    await hear(launched)
    os.kill(launched.process.pid, signal.SIGTERM)
    assert await hear(launched) == Leaving()


async def test_a_process_that_cannot_be_started_is_a_start_error(directory, monkeypatch):
    monkeypatch.setattr(local, "CURRENT", replace(local.CURRENT, path=str(directory / "no-python")))
    with pytest.raises(StartError, match="could not start a worker process for add: .*no-python"):
        await LocalLauncher().launch("add", "log_add")


async def test_lack_of_descriptors_is_a_shortage_and_a_later_start_works(
    launch, directory, num_descriptors
):
    """Whichever descriptor is the first that cannot be had."""
    eventually(lambda: not child_log._thread()._logs)  # of workers of other tests
    free = os.dup(0)
    os.close(free)
    before = len(os.listdir("/proc/self/fd"))
    needed = 0
    while True:
        num_descriptors(free + needed)
        try:
            launched = await launch()
            break
        except ResourceShortage:
            num_descriptors(None)
            assert len(os.listdir("/proc/self/fd")) == before
            needed += 1
    num_descriptors(None)
    assert needed > 8
    load(launched, directory)
    assert isinstance(await hear(launched), Ready)


@pytest.fixture
def num_descriptors():
    """num_descriptors(n): none from n on can be opened; with None, as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(number):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft if number is None else number, hard))

    yield limit
    limit(None)


async def test_a_start_that_fails_leaks_no_descriptor(directory, monkeypatch):
    monkeypatch.setattr(local, "CURRENT", replace(local.CURRENT, path=str(directory / "no-python")))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(StartError):
            await LocalLauncher().launch("add", "log_add")
    assert len(os.listdir("/proc/self/fd")) < before + 10  # others may open some meanwhile


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, ["hugetlb=1"]),
        ("glibc.malloc.arena_max=4", ["arena_max=4", "hugetlb=1"]),
        ("glibc.malloc.hugetlb=0", ["hugetlb=0"]),
    ],
    ids=("nothing said", "something else", "off"),  # pytest puts them into the environment
)
async def test_workers_have_huge_pages_unless_the_operator_says_otherwise(
    launch, directory, monkeypatch, given, wanted
):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    launched = await launch()
    load(launched, directory)
    await hear(launched)  # before, the kernel may not have put it there
    environment = Path(f"/proc/{launched.process.pid}/environ").read_text()
    # glibc cuts the list where it lies when the process starts.
    assert re.findall(r"glibc\.malloc\.(\w+=\d)", environment) == wanted
