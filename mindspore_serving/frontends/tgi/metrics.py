"""Metrics of Text Generation Inference, under the names that its dashboards read.

The HTTP side counts what it sees; numbers of the engine (batches) are passed when the page is
written.
"""

from collections.abc import Mapping, Sequence

from mindspore_serving.frontends.tgi.errors import TgiError
from mindspore_serving.frontends.tgi.writing import Times
from mindspore_serving.metrics.catalog import Kind, Metric
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.metrics.histogram import Histogram

_SECONDS = tuple(0.0001 * 1.5**power for power in range(1, 36))
_FAILURES = {
    "overloaded": "overloaded",
    "validation": "validation",
    "not_found": "validation",
    "template_error": "template",
    "tool_error": "validation",
    "incomplete_generation": "incomplete",
    "incomplete_generation_stream": "incomplete",
    "generation": "generation",
}
DROPPED = "dropped"
_HELP = {
    "request_count": "Requests received.",
    "request_success": "Requests answered completely.",
    "request_failure": "Requests that failed, by error type.",
    "request_input_length": "Tokens of the prompt.",
    "request_max_new_tokens": "Largest number of tokens allowed for the answer.",
    "request_duration": "Seconds from the request's arrival to the end of its answer.",
    "request_validation_duration": "Seconds until the model accepted the request.",
    "request_queue_duration": "Seconds that the request waited for its first step.",
    "request_inference_duration": "Seconds from the first step to the end of the answer.",
    "request_mean_time_per_token_duration": "Seconds of inference per generated token.",
    "request_generated_tokens": "Tokens of the answer.",
    "queue_size": "Sequences waiting in the engines.",
    "batch_current_size": "Sequences running in the engines.",
}


class Recorder:
    """Counts requests, on the event loop's thread; `num_open` are in flight."""

    def __init__(self) -> None:
        self.num_open = 0
        self._num_requests = 0
        self._num_successes = 0
        self._failures: dict[str, int] = {}
        self._histograms: dict[str, Histogram] = {}

    def count_request(self) -> None:
        """Count a request."""
        self._num_requests += 1

    def count_failure(self, error: TgiError) -> None:
        """Count a request that failed."""
        self._count_failure(_FAILURES.get(error.kind, "generation"))

    def count_dropped(self) -> None:
        """Count a request whose client disconnected before the end."""
        self._count_failure(DROPPED)

    def _count_failure(self, kind: str) -> None:
        self._failures[kind] = self._failures.get(kind, 0) + 1

    def observe_accepted(self, times: Times, max_new_tokens: int | None, max_total: int) -> None:
        """Record a request that a model accepted."""
        room = max_total - times.num_prompt_tokens
        self._observe("request_input_length", times.num_prompt_tokens, max_total - 1)
        self._observe("request_max_new_tokens", max_new_tokens or room, max_total)

    def observe_done(self, times: Times, max_total: int) -> None:
        """Record a request that was answered completely."""
        self._num_successes += 1
        inference = times.inference
        count = times.num_generated_tokens
        self._observe("request_duration", times.ended - times.started)
        self._observe("request_validation_duration", times.begun - times.started)
        self._observe("request_queue_duration", times.queued)
        self._observe("request_inference_duration", inference)
        self._observe("request_mean_time_per_token_duration", inference / max(1, count))
        self._observe("request_generated_tokens", count, max_total)

    def _observe(self, name: str, value: float, limit: int = 0) -> None:
        """Add a value to a histogram.

        `limit` is the largest possible number of tokens, 0 for a duration in seconds.
        """
        histogram = self._histograms.get(name)
        if histogram is None:
            bounds = tuple(limit / 100 * step for step in range(1, 101)) if limit else _SECONDS
            histogram = self._histograms[name] = Histogram(bounds)
        histogram.observe(value)

    def add_to(self, page: Page, gauges: Mapping[str, float] | None = None) -> None:
        """Write the metrics to `page`; `gauges` are present values by name, as "queue_size"."""
        page.add(_metric("request_count", "counter"), self._num_requests)
        page.add(_metric("request_success", "counter"), self._num_successes)
        for error, count in sorted(self._failures.items()):
            page.add(_metric("request_failure", "counter", "err"), count, error)
        for name, seen in sorted(self._histograms.items()):
            page.add(_metric(name, "histogram", bounds=seen.bounds), seen)
        for name, value in sorted((gauges or {}).items()):
            page.add(_metric(name, "gauge"), value)


def _metric(name: str, kind: Kind, *labels: str, bounds: Sequence[float] = ()) -> Metric:
    return Metric(f"tgi_{name}", kind, _HELP[name], labels, bounds)
