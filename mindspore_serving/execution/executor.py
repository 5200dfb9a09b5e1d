"""Runs the stages of a worker's methods: batches per stage, later stages first, methods in turn.

One thread, no I/O: parts go in by `add`, finished ones come out of `finished`.  Later stages go
first so that instances leave as soon as they can; methods take turns so that none starves.
"""

from collections import deque

from mindspore_serving import log
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, ServingError, StageFailed
from mindspore_serving.execution.job import Job, Outcome, Part, Program


class Executor:
    """The queues in front of every stage of every program."""

    def __init__(self, programs: dict[str, Program]) -> None:
        self._queues: list[tuple[Program, list[deque[Job]]]] = []
        self._queues_of: dict[str, list[deque[Job]]] = {}
        for name, program in programs.items():
            queues: list[deque[Job]] = [deque() for _ in program.steps]
            self._queues.append((program, queues))
            self._queues_of[name] = queues
        self.programs = programs
        self._turn = 0
        self._num_waiting = 0
        self.finished: list[Part] = []

    @property
    def has_work(self) -> bool:
        return self._num_waiting > 0

    def add(self, part: Part, instances: list[Instance]) -> None:
        """Queue the decoded `instances` of `part` before the first stage."""
        program = part.program
        if not instances:
            raise InvalidInputs(f"Instances count of request cannot be 0, {program.label}")
        part.left = len(instances)
        part.outputs = [b""] * len(instances)
        names = program.method.inputs
        jobs = [
            Job(part, index, [instance[name] for name in names])
            for index, instance in enumerate(instances)
        ]
        if program.steps:
            self._queues_of[program.method.name][0].extend(jobs)
            self._num_waiting += len(jobs)
            return
        for job in jobs:
            self._finish(job)

    def run_next(self, now: float) -> None:
        """Run one batch of the method whose turn it is, at the latest stage that has instances."""
        for offset in range(len(self._queues)):
            program, queues = self._queues[(self._turn + offset) % len(self._queues)]
            for position in range(len(queues) - 1, -1, -1):
                if queues[position]:
                    self._turn = (self._turn + offset + 1) % len(self._queues)
                    self._run_stage(program, position, self._take(queues[position], program, now))
                    return

    def resume(self, jobs: list[Job], outcomes: list[Outcome]) -> None:
        """What a stage elsewhere made of `jobs`, which are all of one method and stage."""
        self._advance(jobs[0].part.program, jobs[0].position, jobs, outcomes)

    def _take(self, queue: deque[Job], program: Program, now: float) -> list[Job]:
        """The next batch; what nobody waits for any more does not get a place in it."""
        taken: list[Job] = []
        limit = program.steps[queue[0].position].limit
        while queue and len(taken) < limit:
            job = queue.popleft()
            self._num_waiting -= 1
            part = job.part
            if part.is_cancelled:
                self._fail(job, DeadlineExceeded("the request was cancelled"))
            elif part.deadline is not None and now >= part.deadline:
                self._fail(job, DeadlineExceeded(f"time is up before stage {job.position + 1}"))
            else:
                taken.append(job)
        return taken

    def _run_stage(self, program: Program, position: int, jobs: list[Job]) -> None:
        if not jobs:
            return
        step, tag = program.steps[position], program.method.stages[position].tag
        try:
            if step.start is not None:
                step.start(jobs)
                return
            outcomes = step.run(jobs)
        except Exception as error:  # a stage's failure is its requests', never the worker's
            log.error("%s of method %s", tag, program.method.name, exc_info=True)
            outcomes = [StageFailed(str(error) or repr(error))] * len(jobs)
        self._advance(program, position, jobs, outcomes)

    def _advance(
        self, program: Program, position: int, jobs: list[Job], outcomes: list[Outcome]
    ) -> None:
        """Each job goes to the next stage, or is done, or has failed alone."""
        num_outputs = len(program.method.stages[position].outputs)
        queues = self._queues_of[program.method.name]
        queue = queues[position + 1] if position + 1 < len(queues) else None
        for job, outcome in zip(jobs, outcomes, strict=True):
            if type(outcome) is not tuple or len(outcome) != num_outputs:
                self._fail_stage(job, outcome)
                continue
            job.values += outcome
            job.position = position + 1
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
        where = f"method: '{method.name}', stage index(begin with 1): {job.position + 1}"
        text = f"Call {stage.tag} Failed, {where}, error msg: {outcome}"
        self._fail(job, type(outcome)(text[:4096]))

    def _finish(self, job: Job) -> None:
        part, values = job.part, job.values
        outputs = {name: values[slot] for name, slot in part.program.returns}
        try:
            part.outputs[job.index] = part.codec.encode(outputs)
        except ServingError as error:
            part.fail(job.index, error)
        self._settle(part)

    def _fail(self, job: Job, error: ServingError) -> None:
        job.part.fail(job.index, error)
        self._settle(job.part)

    def _settle(self, part: Part) -> None:
        part.left -= 1
        if part.left == 0:
            self.finished.append(part)
