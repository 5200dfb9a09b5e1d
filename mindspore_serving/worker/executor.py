"""Run the stages of a worker's methods: batches per stage, later stages first, methods in turn.

One thread and no I/O: parts enter by `add` and leave by `finished`.  Later stages go first so that
instances leave as soon as possible; methods take turns so that none starves.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.graph import StageKind
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, ServingError, StageFailed
from mindspore_serving.ipc.status import SIZE, STAGES, BatchSizes, Lane
from mindspore_serving.worker import request_context
from mindspore_serving.worker.functions import failure_text
from mindspore_serving.worker.job import (
    Job,
    Outcome,
    PreparedMethod,
    PreparedStage,
    ReorderBuffer,
    RunningPart,
)
from mindspore_serving.worker.part_trace import BatchTrace
from mindspore_serving.worker.sequences import Arrays, SequenceStore

_BATCHING = frozenset({StageKind.LANGUAGE, StageKind.SERVABLE})  # they form batches of their own


class Executor:
    """Queues of jobs in front of each stage of each method.

    `post` runs an action on the executor's thread; the default runs it at once, for executors whose
    stages all finish on that thread.  The running stage and the batch sizes are written to `status`
    (see `ipc.status`).
    """

    def __init__(
        self,
        programs: dict[str, PreparedMethod],
        post: Callable[[Callable[[], None]], None] = lambda action: action(),
        status: memoryview | None = None,
    ) -> None:
        self._queues: list[tuple[PreparedMethod, list[deque[Job]]]] = []
        self._queues_of: dict[str, list[deque[Job]]] = {}
        for name, program in programs.items():
            queues: list[deque[Job]] = [deque() for _ in program.stages]
            self._queues.append((program, queues))
            self._queues_of[name] = queues
        self.programs = programs
        self.post = post
        memory = memoryview(bytearray(SIZE)) if status is None else status
        self._lane, self._sizes = Lane(memory, STAGES), BatchSizes(memory)
        self._turn = 0
        self._num_waiting = 0
        self._iterating: deque[tuple[Job, Iterator[Outcome]]] = deque()
        self._is_stream_next = False
        self._batches: dict[Job, BatchTrace] = {}  # of running batches, by their first job
        self.finished: list[RunningPart] = []
        self.unsent: dict[int, RunningPart] = {}  # by id: streams with outputs to be sent

    @property
    def has_work(self) -> bool:
        return self._num_waiting > 0 or bool(self._iterating)

    def add(self, part: RunningPart, instances: list[Instance]) -> None:
        """Queue the decoded `instances` of `part` before the first stage."""
        program, sequence = part.program, part.sequence
        if sequence is not None and program.sequences is not None:
            program.sequences.begin(sequence)
            if sequence.is_end and not instances:  # ends the sequence, and computes nothing
                part.outputs = []
                self._end_part(part)
                return
        if not instances:
            raise InvalidInputs(f"Instances count of request cannot be 0, {program.label}")
        if part.is_stream and len(instances) != 1:
            raise InvalidInputs(
                f"a stream takes one instance, {len(instances)} were given, {program.label}"
            )
        part.num_unfinished = len(instances)
        part.outputs = [] if part.is_stream else [b""] * len(instances)
        names = program.method.inputs
        jobs = [
            Job(part, index, list(map(instance.__getitem__, names)))
            for index, instance in enumerate(instances)
        ]
        if part.is_stream:
            jobs[0].stream = ReorderBuffer()
        if part.trace is not None:
            part.trace.enter(0)
        if program.sequences is not None:
            jobs = self._with_states(part, jobs, program.sequences)
        if program.stages:
            self._queues_of[program.method.name][0].extend(jobs)
            self._num_waiting += len(jobs)
            return
        for job in jobs:
            self._finish(job)

    def _with_states(
        self, part: RunningPart, jobs: list[Job], sequences: SequenceStore
    ) -> list[Job]:
        """Add the states to jobs; of a sequence only to the first, as the others follow it."""
        if part.sequence is not None:
            part.later_jobs.extend(jobs[1:])
            jobs = jobs[:1]
        for job in jobs:
            job.values += sequences.values(part.sequence, is_last=not part.later_jobs)
        return jobs

    def _run_later(self, part: RunningPart, sequences: SequenceStore) -> None:
        """Queue the next job of a sequence, if there is one."""
        if part.later_jobs:
            job = part.later_jobs.popleft()
            is_last = not part.later_jobs
            job.values += sequences.values(part.sequence, is_first=False, is_last=is_last)
            self._queues_of[part.program.method.name][0].append(job)
            self._num_waiting += 1

    def run_next(self, now: float) -> None:
        """Run one batch, or produce the next piece of a stream; batches and streams alternate.

        The batch is of the method whose turn it is, at its latest stage that has instances.
        """
        self._is_stream_next = not self._is_stream_next
        if self._iterating and (self._is_stream_next or not self._num_waiting):
            self._run_iterator()
            return
        for offset in range(len(self._queues)):
            program, queues = self._queues[(self._turn + offset) % len(self._queues)]
            for position in range(len(queues) - 1, -1, -1):
                if queues[position]:
                    self._turn = (self._turn + offset + 1) % len(self._queues)
                    self._run_stage(program, position, self._take(queues[position], program, now))
                    return

    def resume(
        self,
        jobs: list[Job],
        outcomes: list[Outcome],
        position: int | None = None,
        num_stages: int = 1,
    ) -> None:
        """Continue `jobs`, of one method and stage, with the outcomes of stages run elsewhere.

        These are `num_stages` from `position` on; the position of a job that failed is where.
        """
        position = jobs[0].position if position is None else position
        self._advance(jobs[0].part.program, position, jobs, outcomes, num_stages)

    def emit(self, job: Job, outcome: Outcome) -> None:
        """Continue with another piece of `job`, made by an iterator or a stage run elsewhere."""
        stage = job.part.program.method.stages[job.position]
        if type(outcome) is not tuple or len(outcome) != len(stage.outputs):
            self._fail_stage(job, outcome)
            return
        piece = job.piece(outcome)
        if job.part.trace is not None:
            job.part.trace.advance(job.position, is_last=False)
        queues = self._queues_of[piece.part.program.method.name]
        if piece.position == len(queues):
            self._finish(piece)
        else:
            queues[piece.position].append(piece)
            self._num_waiting += 1

    def end(self, job: Job) -> None:
        """Close the stream of `job`: no more pieces will come."""
        assert job.stream is not None
        job.stream.is_closed = True
        if job.stream.is_done:
            self._settle(job.part)

    def _run_iterator(self) -> None:
        job, iterator = self._iterating.popleft()
        part = job.part
        if part.num_unfinished == 0:
            _close(iterator)
            return
        if part.is_cancelled:  # the master also cancels at the deadline
            _close(iterator)
            self._fail(job, _expired(job))
            return
        try:
            self._lane.begin(job.position, [part.id])
            if part.trace is not None:
                part.trace.run(job.position)
            request_context.enter(part)
            outcome = next(iterator)
        except StopIteration:
            self.end(job)
            return
        except BaseException as error:  # of the user's code, where FunctionCaller did not catch it
            outcome = StageFailed(failure_text(error))
        finally:
            self._lane.end()
            request_context.leave()
        self.emit(job, outcome)
        self._iterating.append((job, iterator))

    def _take(self, queue: deque[Job], program: PreparedMethod, now: float) -> list[Job]:
        """Remove the next batch from `queue`; jobs that are cancelled or overdue fail instead."""
        batch: list[Job] = []
        limit = program.stages[queue[0].position].limit
        while queue and len(batch) < limit:
            job = queue.popleft()
            self._num_waiting -= 1
            part = job.part
            if part.is_cancelled or (part.deadline is not None and now >= part.deadline):
                self._fail(job, _expired(job))
            elif not part.is_stream or part.num_unfinished:  # else another piece has failed
                batch.append(job)
        return batch

    def _run_stage(self, program: PreparedMethod, position: int, jobs: list[Job]) -> None:
        stage, method_stage = program.stages[position], program.method.stages[position]
        try:
            if stage.iterate is not None:
                jobs = self._begin_streams(stage, jobs)
            if not jobs:
                return
            self._sizes.observe(len(jobs))
            is_batch = stage.start is None or method_stage.kind not in _BATCHING
            batch = request_context.enter_all(jobs, position, is_batch=is_batch)
            if batch is not None:
                self._batches[jobs[0]] = batch
            if stage.start is not None:
                stage.start(self, jobs)
                return
            self._lane.begin(position, [job.part.id for job in jobs])
            outcomes = request_context.run(stage, jobs)
        except BaseException as error:  # a stage's failure is its requests', never the worker's
            log.error(
                "%s of method %s failed", method_stage.tag, program.method.name, exc_info=True
            )
            outcomes = [StageFailed(failure_text(error))] * len(jobs)
        finally:
            self._lane.end()
            request_context.leave()
        self._advance(program, position, jobs, outcomes)

    def _begin_streams(self, stage: PreparedStage, jobs: list[Job]) -> list[Job]:
        """Start an iterator for each job that is to be streamed; return the other jobs."""
        assert stage.iterate is not None
        for job in jobs:
            if job.is_to_stream:
                self._iterating.append((job, stage.iterate(job)))
        return [job for job in jobs if not job.is_to_stream]

    def _advance(
        self,
        program: PreparedMethod,
        position: int,
        jobs: list[Job],
        outcomes: list[Outcome],
        num_stages: int = 1,
    ) -> None:
        """Move each job past `num_stages` stages, finish it, or fail it alone."""
        following = position + num_stages
        stages = program.method.stages
        num_outputs = len(stages[position].outputs)
        if num_stages > 1:
            num_outputs = sum(len(stage.outputs) for stage in stages[position:following])
        queues = self._queues_of[program.method.name]
        queue = queues[following] if following < len(queues) else None
        if self._batches and (batch := self._batches.pop(jobs[0], None)) is not None:
            request_context.end(batch, jobs, outcomes)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if type(outcome) is not tuple or len(outcome) != num_outputs:
                self._fail_stage(job, outcome)
                continue
            job.values += outcome
            job.position = following
            if job.part.trace is not None:
                job.part.trace.advance(position, is_last=queue is None)
            if queue is None:
                self._finish(job)
            else:
                queue.append(job)
                self._num_waiting += 1

    def _fail_stage(self, job: Job, outcome: Outcome) -> None:
        method = job.part.program.method
        stage = method.stages[job.position]
        if not isinstance(outcome, ServingError):
            text = f"it returned {len(outcome)} outputs, {len(stage.outputs)} are registered"
            outcome = StageFailed(text)
        where = f"method: '{method.name}', stage {job.position + 1} of {len(method.stages)}"
        text = f"Call {stage.tag} Failed, {where}, error msg: {outcome}"
        self._fail(job, type(outcome)(text[:4096]))

    def _finish(self, job: Job) -> None:
        part, values = job.part, job.values
        outputs = {name: values[slot] for name, slot in part.program.returns}
        sequences = part.program.sequences
        states: Arrays = ()
        try:
            if sequences is not None:
                states = sequences.checked(values)
            encoded = part.put(part.codec.encode(outputs))
        except ServingError as error:
            self._fail(job, error)
            return
        if sequences is not None and part.sequence is not None:
            sequences.put(part.sequence, states)
            self._run_later(part, sequences)
        if job.stream is None:
            part.outputs[job.index] = encoded
            self._settle(part)
        elif part.num_unfinished:
            self._send_piece(job, encoded)

    def _send_piece(self, job: Job, encoded: Any) -> None:
        part, stream = job.part, job.stream
        assert stream is not None
        if job.number < 0:  # no stage of the method streams: the answer is the only piece
            job.number, stream.num_begun, stream.is_closed = 0, 1, True
        part.outputs += stream.put(job.number, encoded)
        self.unsent[part.id] = part
        if stream.is_done:
            self._settle(part)

    def _fail(self, job: Job, error: ServingError) -> None:
        if job.part.num_unfinished == 0:
            return  # another piece of the stream has failed already
        job.part.fail(job.index, error)
        for later in job.part.later_jobs:
            text = (
                f"instance {job.index} of the request failed before, and the sequence stays there"
            )
            job.part.fail(later.index, type(error)(text))
            job.part.num_unfinished -= 1
        job.part.later_jobs.clear()
        if job.part.trace is not None:
            job.part.trace.leave(job.position, error.code)
        self._settle(job.part)

    def _settle(self, part: RunningPart) -> None:
        part.num_unfinished -= 1
        if part.num_unfinished == 0:
            self._end_part(part)

    def _end_part(self, part: RunningPart) -> None:
        if part.sequence is not None and part.program.sequences is not None:
            part.kept_state = part.program.sequences.settle(
                part.sequence, has_failed=part.faults is not None
            )
        self.finished.append(part)


def _expired(job: Job) -> ServingError:
    if job.part.is_cancelled:
        return DeadlineExceeded("the request was cancelled")
    return DeadlineExceeded(f"time is up before stage {job.position + 1}")


def _close(iterator: Iterator[Outcome]) -> None:
    close = getattr(iterator, "close", None)
    try:
        if close is not None:
            close()
    except BaseException:  # of the user's code; the request is answered already
        log.error("failed to close a generator", exc_info=True)
