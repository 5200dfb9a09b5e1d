"""Spans of a request to a language model, by OpenTelemetry's conventions for generative AI.

A span for the whole request, and below it one for each phase: prepare, queue, prefill, decode.
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
_CODES = {"overloaded": Code.OVERLOADED}  # by the reason of `Refused`; others are invalid inputs


class GenerationTrace:
    """Trace of `request` to the model `name`, below the current span of `trace`."""

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
            self._attributes.update(_request_attributes(request))
        self._code = 0

    def finish(self) -> list[SpanReport]:
        """Return all spans of the part, which consists of this request only."""
        return self._trace.finish(())

    def take(self, events: list[Event] | ServingError, *, is_last: bool) -> None:
        """Note the outcome of the request in `events`, and end the trace with the last of them."""
        self._note(events)
        if is_last:
            self.end(self._code)

    def _note(self, events: list[Event] | ServingError) -> None:
        if isinstance(events, ServingError):
            self._code = events.code
            return
        for event in events:
            if isinstance(event, Refused):
                self._code = _CODES.get(event.reason, Code.INVALID_INPUTS)
            elif isinstance(event, Embedded | Scored):
                self.timeline.num_prompt_tokens = sum(event.num_prompt_tokens)
            elif isinstance(event, Chunk) and event.finish_reason == "error":
                self._code = event.to_error().code

    def end(self, code: int) -> None:
        """Report the spans of the request, which ended with the error `code` unless that is 0."""
        now = time.monotonic()
        offset = time.time_ns() - _to_ns(now)  # from the monotonic clock to the Unix epoch
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
                {**self._attributes, **_response_attributes(line)},
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


def _request_attributes(request: Generate) -> dict[str, Any]:
    """Return the sampling parameters that the request sets, as span attributes."""
    params = request.params
    attributes = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "seed": params.seed,
        "choice.count": params.n if params.n != 1 else None,
        "stream": request.is_stream or None,
    }
    return {
        f"gen_ai.request.{key}": value for key, value in attributes.items() if value is not None
    }


def _response_attributes(line: Timeline) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": line.num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": line.num_cached_tokens,
        "gen_ai.usage.output_tokens": line.num_generated_tokens,
        "gen_ai.response.finish_reasons": line.finish_reasons,
    }
    return {name: value for name, value in attributes.items() if value}
