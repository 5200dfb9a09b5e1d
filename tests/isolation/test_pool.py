"""Jobs in processes that can be killed: limits of time and memory, cancelling, replacement."""

import os
import signal
import threading
from pathlib import Path

import pytest

from mindspore_serving.errors import Overloaded
from mindspore_serving.isolation.answering import MOST_GROWTH
from mindspore_serving.isolation.children import ForkServer
from mindspore_serving.isolation.pool import MOST_SLOW, Failure, Pool, PoolLimits
from tests.e2e.harness import children, eventually
from tests.isolation.roles import MODULE

LIMITS = PoolLimits(num_processes=1, seconds=1.0, memory=128 << 20)


class Jobs:
    def __init__(self, limits=LIMITS, setup=b"setup"):
        self.pool = Pool(ForkServer(MODULE, lambda: setup), "work", limits)

    def submit(self, content):
        """The job, and what waits for its answer."""
        done, answers = threading.Event(), []

        def on_done(answer):
            answers.append(answer)
            done.set()

        job = self.pool.submit(content, on_done)

        def wait():
            assert done.wait(60), content
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
    found = Jobs()
    yield found
    found.close()


def test_jobs_are_answered_by_a_process_that_was_set_up(jobs):
    setup, pid = jobs.do(b"who").split()
    assert setup == b"setup"
    assert int(pid) != os.getpid()
    assert jobs.pid() == int(pid)
    assert jobs.do(b"echo " + b"x" * 3_000_000) == b"x" * 3_000_000


def test_a_job_that_takes_too_long_fails_and_the_next_is_done(jobs):
    slow, next_one = jobs.submit(b"sleep 600")[1], jobs.submit(b"echo next")[1]
    assert next_one() == b"next"
    assert slow() is Failure.TIME
    assert jobs.pool.num_killed["time"] == 1


def test_a_job_that_is_only_slow_is_done_aside(jobs):
    assert jobs.do(b"sleep 0.5") == b"0.5"
    assert jobs.pool.num_killed["slow"] == 1


@pytest.mark.parametrize("job", [b"take 200000000", b"die 9", b"die 11"])
def test_a_job_whose_process_dies_fails_and_the_next_is_done(jobs, job):
    assert jobs.do(job) is Failure.DEATH
    assert jobs.do(b"echo next") == b"next"


def test_memory_is_for_each_job(jobs):
    for _ in range(4):
        assert jobs.do(b"take 30000000") == b"30000000"


def test_a_process_that_has_grown_is_replaced(jobs):
    pid = jobs.pid()
    assert jobs.do(b"keep 1000000") == b"1000000"
    assert jobs.pid() == pid
    assert jobs.do(b"keep %d" % MOST_GROWTH)
    assert jobs.pid() != pid


def test_a_job_that_is_cancelled_costs_its_process_and_no_other_job(jobs):
    pid = jobs.pid()
    job, _ = jobs.submit(b"sleep 600")
    while job.worker is None:
        pass
    jobs.pool.cancel(job)
    assert jobs.pid() != pid


def test_too_many_slow_jobs_are_refused(jobs):
    large = b"sleep 600" + b" " * (1 << 20)
    first, _ = jobs.submit(large)
    while first.worker is None:
        pass
    for _ in range(MOST_SLOW):
        jobs.submit(large)
    with pytest.raises(Overloaded, match="try again"):
        jobs.submit(large)


def test_a_fork_server_that_was_killed_is_started_again(jobs):
    stat = Path(f"/proc/{jobs.pid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert jobs.do(b"echo next") in (b"next", Failure.DEATH)
    assert jobs.do(b"echo next") == b"next"


def test_closing_ends_all_processes(jobs):
    pid = jobs.pid()
    jobs.submit(b"sleep 600")
    jobs.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_closing_does_not_wait_until_all_is_loaded():
    before = set(children(os.getpid()))
    jobs = Jobs(setup=b"slow")
    eventually(lambda: set(children(os.getpid())) - before)
    jobs.close()
    assert set(children(os.getpid())) <= before
