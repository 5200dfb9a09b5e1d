"""Runs a method of this worker from inside a stage: at once, on this thread, past the queues.

For the pipelines of versions 1.3 and 1.4, whose functions call other methods of their own
servable: were such a call queued, the worker would wait for itself.
"""

from collections.abc import Sequence

from mindspore_serving.core.graph import Stage
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.worker.job import Job, Outcome, Program, RunningPart


def run_method(program: Program, rows: Sequence[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """The outputs of every row of inputs.  Raises the first ServingError of any."""
    method = program.method
    part = RunningPart(0, program, codec=None, deadline=None)
    jobs = []
    for index, row in enumerate(rows):
        if len(row) != len(method.inputs):
            raise InvalidInputs(
                f"method {method.name} has inputs {list(method.inputs)}, {len(row)} were given"
            )
        jobs.append(Job(part, index, list(row)))
    for stage, prepared in zip(method.stages, program.stages, strict=True):
        for start in range(0, len(jobs), prepared.limit):
            batch = jobs[start : start + prepared.limit]
            for job, outcome in zip(batch, prepared.run(batch), strict=True):
                job.values += _outputs(stage, outcome)
    return [tuple(job.values[slot] for slot in method.returns) for job in jobs]


def _outputs(stage: Stage, outcome: Outcome) -> Sequence[Value]:
    """What `stage` made of one instance.  Raises ServingError if it failed."""
    if isinstance(outcome, ServingError):
        raise outcome
    if len(outcome) != len(stage.outputs):
        raise StageFailed(
            f"{stage.tag} returned {len(outcome)} outputs, {len(stage.outputs)} are registered"
        )
    return outcome
