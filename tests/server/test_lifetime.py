"""Signals end a server's process whichever of its threads the kernel gives them to."""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE

SCRIPT = """
import os, signal, sys, threading
from mindspore_serving.server import lifetime as module
from mindspore_serving.server.lifetime import Lifetime

module.REPEAT = 0.0
release = threading.Event()
# A run of the tests in the background of a shell passes an ignored SIGINT on.
signal.signal(signal.SIGINT, signal.default_int_handler)

def shut_down():
    print("shuts down", flush=True)
    if "stuck" in sys.argv:
        release.wait()
    lifetime.over()

def take(number):
    "The signal is this thread's, while the main one waits for the other threads."
    main = f"/proc/self/task/{os.getpid()}/stat"
    while threading.main_thread().is_alive() or open(main).read().split(")")[1].split()[0] != "S":
        pass
    signal.pthread_kill(threading.get_ident(), number)
    if "stuck" in sys.argv:
        lifetime._ended.wait()
        while not lifetime._signal:
            pass
        signal.pthread_kill(threading.get_ident(), number)
    release.wait()  # a thread that ends would wake the main one

lifetime = Lifetime(shut_down)
lifetime.begin()
"""
TAKEN = "threading.Thread(target=take, args=(signal.SIGTERM,), daemon=True).start()"
FORKED = """
before = len(os.listdir("/proc/self/fd"))
child = os.fork()
if not child:
    print(before - len(os.listdir("/proc/self/fd")), "less", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
print("ends" if lifetime._ended.wait(1.0) else "goes on", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def run(script: str, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT + script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout


def test_a_signal_that_another_thread_takes_shuts_down() -> None:
    assert run(TAKEN) == (0, "shuts down\n")


def test_a_second_signal_ends_the_process_at_once() -> None:
    code, _ = run(TAKEN, "stuck")
    assert code == 128 + 15


def test_a_signal_of_a_forked_process_is_not_ours() -> None:
    assert run(FORKED) == (0, "2 less\ngoes on\nshuts down\n")


def test_a_wakeup_descriptor_of_other_code_is_kept() -> None:
    begin = "lifetime.begin()"
    before, after = SCRIPT.split(begin)
    pipe = "own = os.pipe()[1]; os.set_blocking(own, False); signal.set_wakeup_fd(own)\n"
    end = "print(signal.set_wakeup_fd(-1) == own, flush=True); lifetime.end()"
    command = [sys.executable, "-c", before + pipe + begin + after + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, "True\nshuts down\n")


LOST = """
deliver, lost = signal.pthread_kill, [1]
signal.pthread_kill = lambda thread, number: lost.pop() if lost else deliver(thread, number)
"""


def test_a_signal_just_before_the_script_waits_ends_the_script() -> None:
    """The system call that it begins with is not interrupted then: as if it had been lost."""
    code, said = run(f"{LOST}os.kill(os.getpid(), signal.SIGTERM)\nrelease.wait()")
    assert (code, said) == (0, "shuts down\n")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_script_that_still_runs_is_ended_by_a_signal(number: str) -> None:
    code, said = run(f"os.kill(os.getpid(), signal.{number})\nrelease.wait()")
    assert said == "shuts down\n"
    assert code == (0 if number == "SIGTERM" else -2)
