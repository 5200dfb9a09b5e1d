"""Trace of a part: a span for each stage, and below it one for each batch with its instances."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.graph import Stage
from mindspore_serving.ipc.messages import SpanReport
from mindspore_serving.tracing.span import (
    STAGE,
    SpanContext,
    new_id,
)

MAX_REPORTS = 1000  # spans per part
MAX_LINKS = 32  # from the span of a batch to those of other requests in it


@dataclass(slots=True)
class _Stage:
    id: int
    begin: int
    end: int = 0
    code: int = 0


@dataclass(slots=True, eq=False)
class PartTrace:
    """Trace of a part whose span in the master has `context`.

    `current` is the context of the running batch, or else stage: the parent of the user's own
    spans.
    """

    context: SpanContext
    current: SpanContext = field(init=False)
    _stages: dict[int, _Stage] = field(default_factory=dict)
    _reports: list[SpanReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.current = self.context

    def enter(self, position: int) -> None:
        """Begin the span of the stage at `position`, when its first instance is queued."""
        if self.context.is_sampled and position not in self._stages:
            self._stages[position] = _Stage(new_id(), time.time_ns())

    def run(self, position: int) -> None:
        """Make the span of the stage at `position`, which runs, the current one."""
        if self.context.is_sampled:
            self.enter(position)
            self.current = self.context.at(self._stages[position].id)

    def advance(self, position: int, *, is_last: bool) -> None:
        """Note that an instance left the stage at `position`, for the next unless `is_last`."""
        self.leave(position)
        if not is_last:
            self.enter(position + 1)

    def leave(self, position: int, code: int = 0) -> None:
        """End the span of the stage at `position` for now; `code` is its error unless 0."""
        stage = self._stages.get(position)
        if stage is not None:
            stage.end, stage.code = time.time_ns(), code or stage.code

    def report(self, report: SpanReport) -> None:
        if len(self._reports) < MAX_REPORTS:
            self._reports.append(report)

    def finish(self, stages: Sequence[Stage]) -> list[SpanReport]:
        """Return all spans of the part, whose method has `stages`."""
        now = time.time_ns()
        for position, stage in self._stages.items():
            if position < len(stages):
                self.report(
                    SpanReport(
                        name=stages[position].tag,
                        id=stage.id,
                        parent_id=self.context.span_id,
                        begin=stage.begin,
                        end=stage.end or now,
                        attributes={STAGE: position + 1},
                        code=stage.code,
                    )
                )
        return self._reports


@dataclass(slots=True, eq=False)
class BatchTrace:
    """Trace of instances that run together: one span for each of `traces`, linked to the others."""

    position: int
    traces: Sequence[PartTrace]
    attributes: dict[str, Any]
    _begin: int = field(default_factory=time.time_ns)
    _rows: list[tuple[PartTrace, SpanContext, int]] = field(default_factory=list)  # with the parent

    def __post_init__(self) -> None:
        for trace in self.traces:
            trace.run(self.position)
            parent, trace.current = trace.current.span_id, trace.current.child()
            self._rows.append((trace, trace.current, parent))

    def end(self, codes: Mapping[PartTrace, int]) -> None:
        """End the spans of the batch, with the error codes of failed parts."""
        end = time.time_ns()
        for trace, context, parent in self._rows:
            linked = [shared for _, shared, _ in self._rows[:MAX_LINKS] if shared is not context]
            links = [shared.traceparent for shared in linked]
            code = codes.get(trace, 0)
            trace.report(
                SpanReport(
                    "batch", context.span_id, parent, self._begin, end, self.attributes, code, links
                )
            )
