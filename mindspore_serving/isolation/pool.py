"""A pool of processes for untrusted jobs; a process whose job exceeds its limits is killed.

A job first gets a short time slice in one of the quick processes.  If it needs more, that process
is killed and the job starts over in the slow process, which runs such jobs one after another at a
lower CPU priority: a few slow jobs do not hold up the rest.

    submit --> quick queue --> quick workers --(QUICK_SECONDS over)--> slow queue --> slow worker
       +-------(over LARGE bytes)-----------------------------------------^

The time in which a process could run, but other programs had the processors, does not count: a busy
machine is no reason to refuse a request (up to MAX_STRETCH times a limit).

A process that was killed, has died or has grown too large is replaced.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import msgspec

from mindspore_serving import log
from mindspore_serving.errors import Overloaded, TooLarge
from mindspore_serving.isolation.children import ForkedChild, ForkServer
from mindspore_serving.isolation.messages import JobAnswer, JobRequest
from mindspore_serving.process.channel import BlockingChannel

QUICK_SECONDS = 0.25  # time slice of a job in a quick process
LARGE = 1 << 20  # bytes; a larger job is queued as slow at once
MAX_SLOW = 16  # queued slow jobs
MAX_STRETCH = 4  # maximum time that a job may take, in its limits
_CANCELLED_SECONDS = 0.1  # grace of a cancelled job: most finish, which saves killing a process
_SLOW_NICE = 10


class JobFailure(Enum):
    """Reason why a job has no answer; the value continues a sentence about the job."""

    TIME = "takes too long"
    DEATH = "takes too much memory"  # or its process has crashed, which looks the same
    CROWDED = "is slow, and too many slow requests are queued: try again"
    LOST = "failed: no process can be started; the log says why"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a pool and of each job.

    Args:
        num_processes: processes for quick jobs; there is one more for slow jobs.
        seconds: timeout of a job, without the time that it waits for a processor.
        memory: bytes that a job may take in addition to what its process has loaded.
        max_waiting: queued jobs.
        max_waiting_bytes: bytes of all queued jobs.
        quick_seconds: time slice of a job in a quick process.
        large: bytes; a larger job is queued as slow at once.
        max_slow: queued slow jobs.
    """

    num_processes: int = 2
    seconds: float = 5.0
    memory: int = 512 << 20
    max_waiting: int = 1024
    max_waiting_bytes: int = 256 << 20
    quick_seconds: float = QUICK_SECONDS
    large: int = LARGE
    max_slow: int = MAX_SLOW


class PoolJob:
    """A submitted job; `worker` is the worker that runs it, None if it is queued or done."""

    __slots__ = ("content", "is_cancelled", "on_done", "worker")

    def __init__(self, content: bytes, on_done: "Callable[[bytes | JobFailure], None]") -> None:
        self.content = content
        self.on_done = on_done
        self.is_cancelled = False
        self.worker: _Worker | None = None


class Pool:
    """A pool of processes forked by `server`; their `role` has to call `fork_server.answer_jobs`.

    `num_killed` counts processes that were killed or died, by reason: "time", "memory",
    "cancelled" and "slow" (whose job was queued again as slow).
    """

    def __init__(self, server: ForkServer, role: str, limits: PoolLimits) -> None:
        self.limits = limits
        self.num_killed = {"time": 0, "memory": 0, "cancelled": 0, "slow": 0}
        self._server, self._role = server, role
        self._changed = threading.Condition()
        self._quick: deque[PoolJob] = deque()
        self._slow: deque[PoolJob] = deque()
        self._num_bytes = 0  # in both queues
        self._is_closed = False
        self._workers = [_Worker(self, is_slow=False) for _ in range(limits.num_processes)]
        self._workers.append(_Worker(self, is_slow=True))

    def submit(self, content: bytes, on_done: Callable[[bytes | JobFailure], None]) -> PoolJob:
        """Queue a job; `on_done` is called on a thread of the pool, unless the job is cancelled.

        Raises Overloaded if the queue is full.
        """
        job, is_slow = PoolJob(content, on_done), len(content) > self.limits.large
        with self._changed:
            self._check_capacity(len(content), is_slow=is_slow)
            self._put(job, self._slow if is_slow else self._quick)
        return job

    def cancel(self, job: PoolJob) -> None:
        """Cancel a job, unless it is done; `on_done` is not called."""
        with self._changed:
            job.is_cancelled = True
            for queue in (self._quick, self._slow):
                if job in queue:
                    queue.remove(job)
                    self._num_bytes -= len(job.content)
            if job.worker is not None and not self._is_closed:
                job.worker.interrupt()

    def close(self) -> None:
        """Kill all processes; jobs get no answer.  A second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
            for worker in self._workers:
                worker.interrupt()
        self._server.close()
        for worker in self._workers:
            worker.join()

    # --- for workers --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def fork(self, nice: int) -> ForkedChild:
        """Fork a process for a worker.  Raises OSError."""
        return self._server.fork(self._role, self.limits.memory, nice)

    def take(self, worker: "_Worker") -> PoolJob | None:
        """Wait for the next job of `worker` and return it; None if the pool is closed."""
        queue = self._slow if worker.is_slow else self._quick
        with self._changed:
            self._changed.wait_for(lambda: queue or self._is_closed)
            if self._is_closed:
                return None
            job = queue.popleft()
            self._num_bytes -= len(job.content)
            job.worker = worker
            return job

    def defer(self, job: PoolJob) -> JobFailure | None:
        """Queue a job for the slow worker; return a failure if its queue is full."""
        with self._changed:
            job.worker = None
            if len(self._slow) >= self.limits.max_slow:
                return JobFailure.CROWDED
            if not job.is_cancelled:
                self._put(job, self._slow)
            return None

    def count(self, reason: str) -> None:
        with self._changed:
            self.num_killed[reason] += 1

    def finish(self, job: PoolJob, answer: bytes | JobFailure) -> None:
        with self._changed:
            job.worker = None
            if job.is_cancelled or self._is_closed:
                return
        try:
            job.on_done(answer)
        except Exception:
            log.error("the callback of a job failed", exc_info=True)

    def _check_capacity(self, size: int, *, is_slow: bool) -> None:
        limits, num_waiting = self.limits, len(self._quick) + len(self._slow)
        is_full = num_waiting >= limits.max_waiting
        is_full |= bool(num_waiting) and self._num_bytes + size > limits.max_waiting_bytes
        if is_full or (is_slow and len(self._slow) >= limits.max_slow):
            raise Overloaded(f"{num_waiting} requests are queued for preparation; try again")

    def _put(self, job: PoolJob, queue: deque[PoolJob]) -> None:
        queue.append(job)
        self._num_bytes += len(job.content)
        self._changed.notify_all()


class _Worker:
    """A thread of the pool with its process."""

    def __init__(self, pool: Pool, *, is_slow: bool) -> None:
        self.is_slow = is_slow
        self._pool = pool
        self._seconds = pool.limits.seconds
        if not is_slow:
            self._seconds = min(pool.limits.quick_seconds, self._seconds)
        self._child: ForkedChild | None = None
        self._channel: BlockingChannel[JobAnswer]  # to the child
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        name = "slow jobs" if is_slow else "jobs"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Wake the thread, as its job was cancelled or the pool closed; from any thread."""
        os.eventfd_write(self._interrupt, 1)

    def join(self) -> None:
        """Wait until the thread has ended.  No method may be called afterwards."""
        self._thread.join()
        os.close(self._interrupt)

    def _run(self) -> None:
        self._ensure_child()  # so that the first job need not wait
        while (job := self._pool.take(self)) is not None:
            answer = self._do(job) if self._ensure_child() else JobFailure.LOST
            if answer is None:
                answer = self._pool.defer(job)
            if answer is not None:
                self._pool.finish(job, answer)
        self._drop()

    def _ensure_child(self) -> bool:
        """Fork a process if there is none that runs; return whether there is one."""
        if self._child is not None and self._child.has_ended:  # between two jobs
            self._drop()
        if self._child is None:
            try:
                self._child = self._pool.fork(_SLOW_NICE if self.is_slow else 0)
            except OSError as error:
                if not self._pool.is_closed:
                    log.error("cannot start a process for preparing requests: %s", error)
            else:
                self._channel = BlockingChannel(self._child.stream, JobAnswer, self._seconds)
        return self._child is not None

    def _do(self, job: PoolJob) -> bytes | JobFailure | None:
        """Run a job; return its answer, or None if it exceeds the time slice of this worker."""
        try:
            answer = self._wait(job)
        except (EOFError, ConnectionError, TooLarge, msgspec.DecodeError):
            return self._kill("memory", JobFailure.DEATH)
        if answer is None:
            if job.is_cancelled or self._pool.is_closed:
                return self._kill("cancelled", JobFailure.TIME)
            if not self.is_slow:
                return self._kill("slow", None)
            return self._kill("time", JobFailure.TIME)
        if answer.is_last:
            self._drop()
            self._ensure_child()
        return answer.content

    def _wait(self, job: PoolJob) -> JobAnswer | None:
        """Send a job and wait for its answer; None on timeout, or soon after it was cancelled."""
        assert self._child is not None
        begun, delay = time.monotonic(), self._child.run_delay()
        until = begun + self._seconds
        try:
            self._channel.send(JobRequest(job.content))
        except BlockingIOError:  # the child did not read it within the timeout of the channel
            return None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._interrupt, select.POLLIN)
        while True:
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            if self._channel.fileno() in ready and (answers := self._channel.receive(wait=False)):
                return answers[0]
            with suppress(BlockingIOError):
                os.eventfd_read(self._interrupt)
            if job.is_cancelled:
                until = min(until, time.monotonic() + _CANCELLED_SECONDS)
            elif time.monotonic() >= until:
                seconds = self._seconds + self._child.run_delay() - delay
                until = begun + min(seconds, MAX_STRETCH * self._seconds)
            if self._pool.is_closed or time.monotonic() >= until:
                return None

    def _kill(self, reason: str, failure: JobFailure | None) -> JobFailure | None:
        self._drop()
        self._pool.count(reason)
        self._ensure_child()  # so that the next job need not wait
        return failure

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
