"""Jobs in processes that can be killed: limits of time and memory, cancelling, replacement."""

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mindspore_serving.errors import Overloaded
from mindspore_serving.isolation import messages, pool
from mindspore_serving.isolation.children import ForkServer
from mindspore_serving.isolation.fork_server import MAX_GROWTH
from mindspore_serving.isolation.pool import LARGE, MAX_SLOW, JobFailure, Pool, PoolLimits
from mindspore_serving.process.vocabulary import Message, fingerprint
from tests.e2e.harness import children, eventually
from tests.isolation.roles import MODULE
from tests.waiting import PATIENCE

LIMITS = PoolLimits(num_processes=1, seconds=PATIENCE, memory=128 << 20)


class Jobs:
    def __init__(self, limits=LIMITS, setup=b"setup", role="work"):
        self.pool = Pool(ForkServer(MODULE, lambda: setup), role, limits)

    def submit(self, content):
        """The job, and what waits for its answer."""
        done, answers = threading.Event(), []

        def on_done(answer):
            answers.append(answer)
            done.set()

        job = self.pool.submit(content, on_done)

        def wait():
            assert done.wait(2 * PATIENCE), content
            return answers[0]

        return job, wait

    def do(self, content):
        return self.submit(content)[1]()

    def pid(self):
        return int(self.do(b"who").split()[1])

    def close(self):
        self.pool.close()


@pytest.fixture
def jobs():
    with closing(Jobs()) as found:
        yield found


@pytest.fixture
def patient(monkeypatch):
    """`jobs` of which none is slow, whatever else runs on the machine."""
    monkeypatch.setattr(pool, "QUICK_SECONDS", PATIENCE)
    with closing(Jobs()) as found:
        yield found


def test_jobs_are_answered_by_a_process_that_was_set_up(patient):
    setup, pid = patient.do(b"who").split()
    assert setup == b"setup"
    assert int(pid) != os.getpid()
    assert patient.pid() == int(pid)
    assert patient.do(b"echo " + b"x" * 3_000_000) == b"x" * 3_000_000


def test_a_job_that_takes_too_long_fails_and_the_next_is_done():
    with closing(Jobs(replace(LIMITS, seconds=2.0))) as jobs:
        slow, quick = jobs.submit(b"sleep 600")[1], jobs.submit(b"echo next")[1]
        assert quick() == b"next"
        assert slow() is JobFailure.TIME
        assert jobs.pool.num_killed["time"] == 1


def test_a_job_that_is_only_slow_is_done_aside(jobs):
    assert jobs.do(b"sleep 0.5") == b"0.5"
    assert jobs.pool.num_killed["slow"] == 1


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not count such waits"
)
def test_the_time_of_other_programs_on_its_processor_is_no_time_of_a_job():
    limits = replace(LIMITS, quick_seconds=1.0)
    with closing(Jobs(limits)) as jobs:
        processor = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(jobs.pid(), processor)
        burning = "while True: pass"
        others = [subprocess.Popen([sys.executable, "-c", burning]) for _ in range(3)]
        try:
            for other in others:
                os.sched_setaffinity(other.pid, processor)
            assert jobs.do(b"burn 0.5") == b"0.5"  # a quarter of a processor: 2 seconds
        finally:
            for other in others:
                other.kill()
                other.wait()
        assert jobs.pool.num_killed["slow"] == 0


@pytest.mark.parametrize("job", [b"take 200000000", b"die 9", b"die 11"])
def test_a_job_whose_process_dies_fails_and_the_next_is_done(jobs, job):
    assert jobs.do(job) is JobFailure.DEATH
    assert jobs.do(b"echo next") == b"next"


def test_a_process_that_dies_between_jobs_costs_no_job(patient):
    pid = patient.pid()
    with open(os.pidfd_open(pid), "rb", buffering=0) as process:
        os.kill(pid, signal.SIGKILL)
        select.select([process], [], [])
    assert patient.pid() != pid
    assert patient.pool.num_killed["memory"] == 0


def test_a_process_that_answers_with_no_frame_is_replaced():
    with closing(Jobs(role="babble")) as jobs:
        assert jobs.do(b"first") is JobFailure.DEATH
        assert jobs.do(b"second") is JobFailure.DEATH


def test_memory_is_for_each_job(jobs):
    for _ in range(4):
        assert jobs.do(b"take 30000000") == b"30000000"


def test_a_process_that_has_grown_is_replaced(patient):
    pid = patient.pid()
    assert patient.do(b"keep 1000000") == b"1000000"
    assert patient.pid() == pid
    assert patient.do(b"keep %d" % MAX_GROWTH)
    assert patient.pid() != pid


def test_a_job_that_is_cancelled_costs_its_process_and_no_other_job(jobs):
    pid = jobs.pid()
    job, _ = jobs.submit(b"sleep 600")
    eventually(lambda: job.worker is not None)
    jobs.pool.cancel(job)
    assert jobs.pid() != pid


def test_too_many_slow_jobs_are_refused(jobs):
    large = b"sleep 600" + b" " * LARGE
    first, _ = jobs.submit(large)
    eventually(lambda: first.worker is not None)
    for _ in range(MAX_SLOW):
        jobs.submit(large)
    with pytest.raises(Overloaded, match="try again"):
        jobs.submit(large)


def test_a_fork_server_that_was_killed_is_started_again(patient):
    pid = patient.pid()
    stat = Path(f"/proc/{pid}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    def is_done_by_another() -> bool:
        answer = patient.do(b"who")  # by the process of before, while it still lives
        return answer is not JobFailure.DEATH and int(answer.split()[1]) != pid

    eventually(is_done_by_another)
    assert patient.do(b"echo next") == b"next"


def test_a_fork_server_that_cannot_load_says_why():
    broken = ForkServer(MODULE, lambda: b"broken")
    with closing(broken), pytest.raises(OSError, match="ValueError: the setup is broken"):
        broken.fork("work", 128 << 20)


def test_a_fork_server_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(messages, "Added", type("Added", (Message,), {}), raising=False)
    fingerprint.cache_clear()
    try:
        server = ForkServer(MODULE, lambda: b"setup")
        with closing(server), pytest.raises(OSError, match="the fork server's .*of one release"):
            server.fork("work", 128 << 20)
    finally:
        fingerprint.cache_clear()


def test_closing_ends_all_processes(jobs):
    pid = jobs.pid()
    jobs.submit(b"sleep 600")
    jobs.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert jobs.pool.is_closed


def test_closing_does_not_wait_until_all_is_loaded():
    before = set(children(os.getpid()))
    jobs = Jobs(setup=b"slow")
    eventually(lambda: set(children(os.getpid())) - before)
    jobs.close()
    assert set(children(os.getpid())) <= before
