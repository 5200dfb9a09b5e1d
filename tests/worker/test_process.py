"""A worker as a process of its own: kinds of channel, signals, and what ends with it."""

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import mindspore_serving
from mindspore_serving.ipc import arena as arenas
from mindspore_serving.ipc import messages
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import RequestPart, Slice, ToMaster, Work
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.vocabulary import Exit, Leaving, Ready, hello
from mindspore_serving.wire import native
from tests.waiting import PATIENCE

BODY = """
import os
import signal
import subprocess
import sys
import time

seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))

@method("y")
def twice(x):
    return x * 2

@method("y")
def child(x):
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

@method("y")
def hanging(x):
    time.sleep(600)

def send_signal(x):
    os.kill(os.getpid(), signal.SIGUSR1)
    while not seen:
        time.sleep(0.001)
    return len(seen)


@method("y")
def late_import(x):
    import colorsys
    return int(colorsys.rgb_to_hsv(0, 0, 1)[2])




@register.register_method(output_names=["y"])
def signalled(x):
    return register.add_stage(send_signal, x, outputs_count=1)
"""
LARGE = np.arange(50_000)


class Process:
    """A worker process and our end of its channel."""

    def __init__(self, directory, channel, *descriptors, arenas=None):
        command = [sys.executable, "-m", "mindspore_serving.worker", "--channel", channel]
        if arenas:
            command += ["--arenas", arenas]
        root = str(Path(mindspore_serving.__file__).parents[1])
        self.child = subprocess.Popen(
            command,
            pass_fds=descriptors,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": root},
            start_new_session=True,
        )
        self.stream = None
        self._frames, self._messages = message_decoder(ToMaster), []

    def talk(self, stream):
        stream.settimeout(PATIENCE)
        self.stream = stream
        return self

    def say(self, *messages):
        self.stream.sendall(b"".join(map(encode, messages)))

    def receive(self):
        while not self._messages:
            data = self.stream.recv(1 << 16)
            assert data, "the worker is gone"
            self._messages += self._frames.feed(data)
        return self._messages.pop(0)

    def load(self, setup):
        assert self.receive() == hello(messages)
        self.say(setup)
        assert isinstance(self.receive(), Ready)
        return self

    def ask(self, method, value):
        """The one payload that `method` makes of `value`."""
        self.say(work(method, value))
        (reply,) = self.receive().replies
        assert reply.faults is None
        return reply.instances[0]

    def end(self):
        return self.child.wait(PATIENCE)

    def close(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(PATIENCE)
        if self.stream is not None:
            self.stream.close()


def work(method, value):
    chunk = native.encode_values([np.array(value)])
    return Work([RequestPart(1, method, "native", [chunk], None)])


def value(payload):
    (array,) = native.decode_values(payload)
    return array.tolist()


@pytest.fixture
def start(tmp_path):
    """Start a process; it is killed at the end if the test did not end it."""
    started = []

    def make(channel, *descriptors, **options):
        process = Process(tmp_path, channel, *descriptors, **options)
        started.append(process)
        return process

    yield make
    for process in started:
        process.close()


@pytest.fixture
def worker(start, write):
    """A worker over an inherited socket, without arenas, that has loaded BODY."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = start(f"fd:{theirs.fileno()}", theirs.fileno())
    return process.talk(ours).load(write(BODY))


def test_a_worker_over_an_inherited_socket_and_arenas(start, write):
    ours, theirs = socket.socketpair()
    to_worker, to_master = arenas.create(), arenas.create()
    with theirs:
        descriptors = (theirs.fileno(), to_worker, to_master)
        shared = f"{to_master},{to_worker}"
        process = start(f"fd:{theirs.fileno()}", *descriptors, arenas=shared)
    process.talk(ours).load(write(BODY))
    with closing(Arena(to_worker)) as arena, closing(ArenaView(to_master)) as view:
        payload = arena.put(native.encode_values([LARGE]))
        process.say(Work([RequestPart(1, "twice", "native", [payload], None)]))
        (answer,) = process.receive().replies[0].instances
        assert isinstance(answer, Slice)
        assert value(bytes(view.get(answer))) == (LARGE * 2).tolist()
    for descriptor in (to_worker, to_master):
        os.close(descriptor)
    process.say(Exit())
    assert process.end() == 0


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_worker_over_a_connection_without_arenas(start, write, tmp_path, kind):
    if kind == "unix":
        listener, path = socket.socket(socket.AF_UNIX), str(tmp_path / "master.sock")
        listener.bind(path)
        listener.listen()
        channel = f"unix:{path}"
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        channel = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
    with listener:
        listener.settimeout(PATIENCE)
        process = start(channel)
        process.talk(listener.accept()[0]).load(write(BODY))
    assert value(NoArena().get(process.ask("twice", LARGE))) == (LARGE * 2).tolist()
    process.say(Exit())
    assert process.end() == 0


def test_the_end_of_the_master_ends_the_worker_and_its_children(worker):
    child = value(worker.ask("child", 0))
    with open_pid(child) as descriptor:
        worker.stream.close()
        assert worker.end() == -signal.SIGKILL
        assert has_ended(descriptor)


def test_the_end_of_the_master_ends_a_worker_that_hangs(worker):
    worker.say(work("hanging", 0))
    worker.stream.shutdown(socket.SHUT_WR)
    assert worker.end() == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_announced_and_the_worker_continues_until_exit(worker, number):
    worker.child.send_signal(number)
    assert worker.receive() == Leaving()
    assert value(worker.ask("twice", 4)) == 8
    worker.say(Exit())
    assert worker.end() == 0


def test_a_signal_is_announced_while_a_stage_runs(worker):
    worker.say(work("hanging", 0))
    worker.child.send_signal(signal.SIGTERM)
    assert worker.receive() == Leaving()


def test_signals_of_the_users_own_are_not_a_farewell(worker):
    assert value(worker.ask("signalled", 0)) == 1
    worker.say(Exit())
    assert worker.stream.recv(100) == b""
    assert worker.end() == 0


def test_the_current_directory_shadows_no_import_of_a_servable(worker, tmp_path):
    (tmp_path / "colorsys.py").write_text("raise ImportError('shadowed')")
    assert value(worker.ask("late_import", 0)) == 1


def open_pid(pid):
    """A descriptor of a process, to be closed; it is readable once that has ended."""
    return open(os.pidfd_open(pid), "rb", buffering=0)


def has_ended(descriptor):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * PATIENCE))
