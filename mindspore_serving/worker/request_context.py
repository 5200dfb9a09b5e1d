"""Requests that the current thread is working on, for logs and traces.

Their ids prefix its log lines, and spans of the user's code become children of their spans.
"""

from collections.abc import Sequence
from contextvars import ContextVar

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.tracing import user_spans
from mindspore_serving.tracing.span import BATCH_REQUESTS, BATCH_SIZE
from mindspore_serving.worker.job import Job, Outcome, PreparedStage, RunningPart
from mindspore_serving.worker.part_trace import BatchTrace, PartTrace

MAX_NAMED = 16  # request ids of a batch in the prefix of a log line
_working: ContextVar[RunningPart | Sequence[Job]] = ContextVar("working", default=())
_set_ids, _context = log.request_id.set, user_spans.current.get


def enter(part: RunningPart) -> None:
    """Set `part` as the only one that this thread works on, until `leave`."""
    _working.set(part)
    _set_ids(part.request_id)
    if part.trace is not None or _context() is not None:
        _follow(part.trace)


def enter_all(jobs: Sequence[Job], position: int, *, is_batch: bool) -> BatchTrace | None:
    """Set the parts of `jobs`, at the stage `position`, as those that this thread works on.

    Returns the trace of the batch, if `is_batch` and any of its requests is sampled.
    """
    _working.set(jobs)
    if len(jobs) == 1 and jobs[0].part.trace is None:
        _set_ids(jobs[0].part.request_id)
        return None
    parts = list(dict.fromkeys([job.part for job in jobs]))
    ids = [part.request_id for part in parts[:MAX_NAMED]]
    if len(parts) > MAX_NAMED:
        ids.append(f"{len(parts) - MAX_NAMED} more")
    _set_ids(",".join(ids))
    traces = [part.trace for part in parts if part.trace is not None]
    return _begin(jobs, position, traces, len(parts), is_batch=is_batch) if traces else None


def part_ids() -> list[int]:
    """Return the ids of the parts that this thread works on."""
    working = _working.get()
    if isinstance(working, RunningPart):
        return [working.id]
    return list(dict.fromkeys([job.part.id for job in working]))


def _begin(
    jobs: Sequence[Job],
    position: int,
    traces: Sequence[PartTrace],
    num_requests: int,
    *,
    is_batch: bool,
) -> BatchTrace | None:
    sampled = [trace for trace in traces if trace.context.is_sampled]
    batch = None
    if is_batch and sampled:
        attributes = {BATCH_SIZE: len(jobs), BATCH_REQUESTS: num_requests}
        batch = BatchTrace(position, sampled, attributes)
    else:
        for trace in sampled:
            trace.run(position)
    _follow((sampled or traces)[0])
    return batch


def run(stage: PreparedStage, jobs: list[Job]) -> list[Outcome]:
    """Run a stage for `jobs` that were entered; return an outcome each.  May raise for all."""
    if not stage.is_per_instance or len(jobs) == 1:
        return stage.run(jobs)
    outcomes: list[Outcome] = []
    call = stage.call
    for job in jobs:
        enter(job.part)
        outcomes += call([job.arguments(stage)])
    return outcomes


def end(batch: BatchTrace, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    """End the trace of the batch that consists of `jobs`."""
    codes = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job.part.trace is not None and isinstance(outcome, ServingError):
            codes[job.part.trace] = int(outcome.code)
    batch.end(codes)


def leave() -> None:
    """Set that this thread works on no request."""
    _working.set(())
    _set_ids("")
    if _context() is not None:
        _follow(None)


def _follow(trace: PartTrace | None) -> None:
    context = None if trace is None else trace.current
    if context is not _context():
        user_spans.follow(context)
