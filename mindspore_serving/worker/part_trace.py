"""What is recorded of a part whose request is traced: a span for each of its stages, and below
that one for each batch in which the stage had instances of it.
"""

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

MOST_REPORTS = 1000  # spans of one part
MOST_LINKS = 32  # of a batch, to those that shared it


@dataclass(slots=True)
class _Stage:
    id: int
    begin: int
    end: int = 0
    code: int = 0


@dataclass(slots=True, eq=False)
class PartTrace:
    """Of a part whose span in the master has `context`.  `current` is that of the batch, or else
    the stage, that runs now: what the servable's own spans belong to.
    """

    context: SpanContext
    current: SpanContext = field(init=False)
    _stages: dict[int, _Stage] = field(default_factory=dict)
    _reports: list[SpanReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.current = self.context

    def enter(self, position: int) -> None:
        """An instance waits for the stage at `position`."""
        if self.context.is_sampled and position not in self._stages:
            self._stages[position] = _Stage(new_id(), time.time_ns())

    def run(self, position: int) -> None:
        """The stage at `position` runs, or goes on."""
        if self.context.is_sampled:
            self.enter(position)
            self.current = self.context.at(self._stages[position].id)

    def advance(self, position: int, *, is_last: bool) -> None:
        """An instance has left the stage for the next, if there is one."""
        self.leave(position)
        if not is_last:
            self.enter(position + 1)

    def leave(self, position: int, code: int = 0) -> None:
        """The stage has made something of an instance, or failed with `code`."""
        stage = self._stages.get(position)
        if stage is not None:
            stage.end, stage.code = time.time_ns(), code or stage.code

    def report(self, report: SpanReport) -> None:
        if len(self._reports) < MOST_REPORTS:
            self._reports.append(report)

    def finish(self, stages: Sequence[Stage]) -> list[SpanReport]:
        """All that was recorded of a method with these stages."""
        now = time.time_ns()
        for position, one in self._stages.items():
            if position < len(stages):
                self.report(
                    SpanReport(
                        name=stages[position].tag,
                        id=one.id,
                        parent_id=self.context.span_id,
                        begin=one.begin,
                        end=one.end or now,
                        attributes={STAGE: position + 1},
                        code=one.code,
                    )
                )
        return self._reports


@dataclass(slots=True, eq=False)
class BatchTrace:
    """Instances that run together: a span for each of `traces`, whose parts have some of them, with
    links to the others.
    """

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
        """It has run; the parts of `codes` have failed."""
        end = time.time_ns()
        for trace, own, parent in self._rows:
            shared = [one.traceparent for _, one, _ in self._rows[:MOST_LINKS] if one is not own]
            code = codes.get(trace, 0)
            trace.report(
                SpanReport(
                    "batch", own.span_id, parent, self._begin, end, self.attributes, code, shared
                )
            )
