"""Which requests this thread runs: their ids stand in front of what it logs, and the spans of the
servable's own code belong to theirs.
"""

from collections.abc import Sequence

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.execution.item_trace import BatchTrace, ItemTrace
from mindspore_serving.execution.job import Item, Job, Outcome, PreparedStage
from mindspore_serving.tracing import user_spans
from mindspore_serving.tracing.span import BATCH_REQUESTS, BATCH_SIZE


def enter(item: Item) -> None:
    """The thread runs instances of `item` alone, until `leave`."""
    log.request_id.set(item.request_id)
    _follow(item.trace)


def enter_all(jobs: Sequence[Job], position: int, *, is_batch: bool) -> BatchTrace | None:
    """The thread runs `jobs`, at the stage `position`.  If they are a batch and any is traced, the
    trace of that."""
    log.request_id.set(",".join(dict.fromkeys([job.item.request_id for job in jobs])))
    traces = dict.fromkeys([job.item.trace for job in jobs if job.item.trace is not None])
    if not traces:
        return None
    sampled = [trace for trace in traces if trace.context.is_sampled]
    batch = None
    if is_batch and sampled:
        num_requests = len({job.item for job in jobs})
        attributes = {BATCH_SIZE: len(jobs), BATCH_REQUESTS: num_requests}
        batch = BatchTrace(position, sampled, attributes)
    else:
        for trace in sampled:
            trace.run(position)
    _follow(next(iter(sampled or traces)))
    return batch


def run(stage: PreparedStage, jobs: list[Job]) -> list[Outcome]:
    """What becomes of each of `jobs`, that were entered; may raise for all."""
    if not stage.takes_one:
        return stage.run(jobs)
    outcomes: list[Outcome] = []
    for job in jobs:
        enter(job.item)
        outcomes += stage.run([job])
    return outcomes


def end(batch: BatchTrace, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    """`batch`, of `jobs`, has run."""
    codes = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job.item.trace is not None and isinstance(outcome, ServingError):
            codes[job.item.trace] = int(outcome.code)
    batch.end(codes)


def leave() -> None:
    """It runs none."""
    log.request_id.set("")
    _follow(None)


def _follow(trace: ItemTrace | None) -> None:
    context = None if trace is None else trace.current
    if context is not user_spans.current.get():
        user_spans.follow(context)
