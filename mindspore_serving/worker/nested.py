"""Run a method of this worker from inside a stage: at once, on the same thread, past the queues.

The pipelines of versions 1.3 and 1.4 call other methods of their own servable.  If such a call were
queued, the worker would wait for itself.
"""

from collections.abc import Sequence

from mindspore_serving.core.graph import Stage
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.worker.job import Job, Outcome, PreparedMethod, RunningPart


def run_method(
    program: PreparedMethod, rows: Sequence[tuple[Value, ...]]
) -> list[tuple[Value, ...]]:
    """Return the outputs of the method for each row of inputs.  Raises the first ServingError."""
    method = program.method
    if method.needs_sequence:
        raise InvalidInputs(
            f"method {method.name} has a state: clients call it with a sequence, stages cannot"
        )
    part = RunningPart(0, program, codec=None, deadline=None)
    jobs = []
    for index, row in enumerate(rows):
        if len(row) != len(method.inputs):
            raise InvalidInputs(
                f"method {method.name} has inputs {list(method.inputs)}, {len(row)} were given"
            )
        states = [] if program.sequences is None else program.sequences.values(None)
        jobs.append(Job(part, index, [*row, *states]))
    for stage, prepared in zip(method.stages, program.stages, strict=True):
        for start in range(0, len(jobs), prepared.limit):
            batch = jobs[start : start + prepared.limit]
            for job, outcome in zip(batch, prepared.run(batch), strict=True):
                job.values += _outputs(stage, outcome)
    return [tuple(job.values[slot] for slot in method.returns) for job in jobs]


def _outputs(stage: Stage, outcome: Outcome) -> Sequence[Value]:
    """Return the outputs of `stage` for one instance.  Raises ServingError if it failed."""
    if isinstance(outcome, ServingError):
        raise outcome
    if len(outcome) != len(stage.outputs):
        raise StageFailed(
            f"{stage.tag} returned {len(outcome)} outputs, {len(stage.outputs)} are registered"
        )
    return outcome
