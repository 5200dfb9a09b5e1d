"""The spans of a request to a language model, by OpenTelemetry's conventions for generative AI:
one as a whole, and below it how long it was prepared, waited, and read and wrote tokens.
"""

import time
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Event, Generate, LLMRequest, Refused
from mindspore_serving.core.reading_messages import Embed, Embedded, Scored
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.ipc.messages import SpanReport
from mindspore_serving.llm.serving.recording import Timeline
from mindspore_serving.tracing.span import new_id
from mindspore_serving.worker.part_trace import PartTrace

_PHASES = ("prepare", "queue", "prefill", "decode")  # each ends where the next begins
_BLAMED = {"overloaded": Code.OVERLOADED}  # by the reason of `Refused`; others are wrong inputs


class GenerationTrace:
    """Of `request` to the model `name`, below the span that `trace` is at now."""

    def __init__(self, trace: PartTrace, request: LLMRequest, name: str) -> None:
        self.timeline = Timeline()
        self._trace = trace
        self._parent_id = trace.current.span_id
        self._id = new_id()
        self._operation = _operation(request)
        self._attributes: dict[str, Any] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.request.model": getattr(request, "adapter", "") or name,
        }
        if isinstance(request, Generate):
            self._attributes.update(_asked(request))
        self._code = 0

    def finish(self) -> list[SpanReport]:
        """All that was recorded of a part that is this request alone."""
        return self._trace.finish(())

    def take(self, events: list[Event] | ServingError, *, is_last: bool) -> None:
        """What came of it."""
        self._look_at(events)
        if is_last:
            self.end(self._code)

    def _look_at(self, events: list[Event] | ServingError) -> None:
        if isinstance(events, ServingError):
            self._code = events.code
            return
        for event in events:
            if isinstance(event, Refused):
                self._code = _BLAMED.get(event.reason, Code.INVALID_INPUTS)
            elif isinstance(event, Embedded | Scored):
                self.timeline.num_prompt_tokens = sum(event.num_prompt_tokens)
            elif isinstance(event, Chunk) and event.finish_reason == "error":
                self._code = event.to_error().code

    def end(self, code: int) -> None:
        """It has ended, with an error of `code` if that is not 0."""
        now = time.monotonic()
        offset = time.time_ns() - _to_ns(now)  # between this clock and the time since 1970
        line = self.timeline
        marks = [line.accepted, line.ready, line.first_step, line.first_token, now]
        times = [_to_ns(mark) + offset for mark in marks if mark]
        self._trace.report(
            SpanReport(
                f"{self._operation} {self._attributes['gen_ai.request.model']}",
                self._id,
                self._parent_id,
                times[0],
                times[-1],
                {**self._attributes, **_used(line)},
                code,
            )
        )
        for name, begin, end in zip(_PHASES, times, times[1:], strict=False):
            self._trace.report(SpanReport(name, new_id(), self._id, begin, end, {}))


def _to_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _operation(request: LLMRequest) -> str:
    if isinstance(request, Generate):
        return "chat" if request.messages is not None else "text_completion"
    return "embeddings" if isinstance(request, Embed) else type(request).__name__.lower()


def _asked(request: Generate) -> dict[str, Any]:
    """How it samples, as far as that was said."""
    params = request.params
    asked = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "seed": params.seed,
        "choice.count": params.n if params.n != 1 else None,
        "stream": request.is_stream or None,
    }
    return {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}


def _used(line: Timeline) -> dict[str, Any]:
    used: dict[str, Any] = {
        "gen_ai.usage.input_tokens": line.num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": line.num_cached_tokens,
        "gen_ai.usage.output_tokens": line.num_generated_tokens,
        "gen_ai.response.finish_reasons": line.finish_reasons,
    }
    return {name: value for name, value in used.items() if value}
