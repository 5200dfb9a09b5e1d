"""Jobs that strangers wrote, done by a few processes that are killed when one takes too long.

A job has a short time at first.  One that needs more begins anew in another process, where such
jobs wait for each other and get less of a busy machine: a few slow ones do not hold up the rest.
A process that was killed, has died or has grown is replaced; that costs nothing but its job.
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

QUICK_SECONDS = 0.25  # before a job has to wait for other slow ones
LARGE = 1 << 20  # bytes of a job that is slow without being tried
MOST_SLOW = 16  # that wait
_CANCELLED_SECONDS = 0.1  # that a job may still take when nobody wants it: most are done by then
_SLOW_NICE = 10


class JobFailure(Enum):
    """Why a job has no answer; the value continues a sentence."""

    TIME = "takes too long"
    DEATH = "takes too much memory"  # or its process has crashed, which looks the same
    CROWDED = "is slow, and too many slow ones wait: try again"
    LOST = "cannot be done: no process can be started; the log says why"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What jobs may take.

    Args:
        num_processes: for quick jobs; one more does slow ones.
        seconds: of one job.
        memory: bytes of one job, beside what its process has loaded.
        max_waiting: jobs.
        max_waiting_bytes: of all jobs that wait.
    """

    num_processes: int = 2
    seconds: float = 5.0
    memory: int = 512 << 20
    max_waiting: int = 1024
    max_waiting_bytes: int = 256 << 20


class PoolJob:
    """A job that was submitted; `worker` does it now."""

    __slots__ = ("content", "is_cancelled", "on_done", "worker")

    def __init__(self, content: bytes, on_done: "Callable[[bytes | JobFailure], None]") -> None:
        self.content = content
        self.on_done = on_done
        self.is_cancelled = False
        self.worker: _Worker | None = None


class Pool:
    """Has jobs done by processes that `server` forks with the role `role`, which must be
    `fork_server.answer_jobs`.

    `num_killed` counts processes that were killed or died, by "time", "memory", "cancelled" and
    "slow" (whose job begins anew).
    """

    def __init__(self, server: ForkServer, role: str, limits: PoolLimits) -> None:
        self.limits = limits
        self.num_killed = {"time": 0, "memory": 0, "cancelled": 0, "slow": 0}
        self._server, self._role = server, role
        self._changed = threading.Condition()
        self._quick: deque[PoolJob] = deque()
        self._slow: deque[PoolJob] = deque()
        self._num_bytes = 0  # of those two
        self._is_closed = False
        self._workers = [_Worker(self, is_slow=False) for _ in range(limits.num_processes)]
        self._workers.append(_Worker(self, is_slow=True))

    def submit(self, content: bytes, on_done: Callable[[bytes | JobFailure], None]) -> PoolJob:
        """Have `content` answered; `on_done` is called on a thread of the pool, unless the job is
        cancelled before.  Raises Overloaded if too much waits.
        """
        job, is_slow = PoolJob(content, on_done), len(content) > LARGE
        with self._changed:
            self._check_room(len(content), is_slow=is_slow)
            self._put(job, self._slow if is_slow else self._quick)
        return job

    def cancel(self, job: PoolJob) -> None:
        """Nobody wants the answer.  Harmless if it was given."""
        with self._changed:
            job.is_cancelled = True
            for queue in (self._quick, self._slow):
                if job in queue:
                    queue.remove(job)
                    self._num_bytes -= len(job.content)
            if job.worker is not None and not self._is_closed:
                job.worker.interrupt()

    def close(self) -> None:
        """End all processes; jobs get no answer.  A second call does nothing."""
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
        """Raises OSError."""
        return self._server.fork(self._role, self.limits.memory, nice)

    def take(self, worker: "_Worker") -> PoolJob | None:
        """The next job of `worker`; waits for it.  None if the pool is closed."""
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
        """Let `job`, which is slow, wait for the worker of such ones; or say why not."""
        with self._changed:
            job.worker = None
            if len(self._slow) >= MOST_SLOW:
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
            log.error("taking what a process has answered", exc_info=True)

    def _check_room(self, size: int, *, is_slow: bool) -> None:
        limits, num_waiting = self.limits, len(self._quick) + len(self._slow)
        is_full = num_waiting >= limits.max_waiting
        is_full |= bool(num_waiting) and self._num_bytes + size > limits.max_waiting_bytes
        if is_full or (is_slow and len(self._slow) >= MOST_SLOW):
            raise Overloaded(f"{num_waiting} requests wait already to be prepared; try again")

    def _put(self, job: PoolJob, queue: deque[PoolJob]) -> None:
        queue.append(job)
        self._num_bytes += len(job.content)
        self._changed.notify_all()


class _Worker:
    """A thread with a process."""

    def __init__(self, pool: Pool, *, is_slow: bool) -> None:
        self.is_slow = is_slow
        self._pool = pool
        self._seconds = pool.limits.seconds
        if not is_slow:
            self._seconds = min(QUICK_SECONDS, self._seconds)
        self._child: ForkedChild | None = None
        self._channel: BlockingChannel[JobAnswer]  # to the child
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        name = "slow jobs" if is_slow else "jobs"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """From any thread: look whether the job was cancelled, or the pool closed."""
        os.eventfd_write(self._interrupt, 1)

    def join(self) -> None:
        """Wait for its end.  Nothing may be called afterwards."""
        self._thread.join()
        os.close(self._interrupt)

    def _run(self) -> None:
        self._ready()  # now, not when the first job comes
        while (job := self._pool.take(self)) is not None:
            answer = self._do(job) if self._ready() else JobFailure.LOST
            if answer is None:
                answer = self._pool.defer(job)
            if answer is not None:
                self._pool.finish(job, answer)
        self._drop()

    def _ready(self) -> bool:
        """Whether there is a process."""
        if self._child is None:
            try:
                self._child = self._pool.fork(_SLOW_NICE if self.is_slow else 0)
            except OSError as error:
                if not self._pool.is_closed:
                    log.error("a process for jobs cannot be started: %s", error)
            else:
                self._channel = BlockingChannel(self._child.stream, JobAnswer, self._seconds)
        return self._child is not None

    def _do(self, job: PoolJob) -> bytes | JobFailure | None:
        """The answer; None if it takes longer than this worker has."""
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
            self._ready()
        return answer.content

    def _wait(self, job: PoolJob) -> JobAnswer | None:
        """The answer; None when its time is over, or soon after nobody wants it any more."""
        until = time.monotonic() + self._seconds
        try:
            self._channel.send(JobRequest(job.content))
        except BlockingIOError:  # the child has not read it within the time of the channel
            return None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._interrupt, select.POLLIN)
        while True:
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            if self._channel.fileno() in ready and (answers := self._channel.receive(wait=False)):
                return answers[0]
            if self._pool.is_closed or time.monotonic() >= until:
                return None
            with suppress(BlockingIOError):
                os.eventfd_read(self._interrupt)
            if job.is_cancelled:
                until = min(until, time.monotonic() + _CANCELLED_SECONDS)

    def _kill(self, reason: str, failure: JobFailure | None) -> JobFailure | None:
        self._drop()
        self._pool.count(reason)
        self._ready()  # the next job is not to wait for it
        return failure

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
