"""Metrics of language models under the names of vLLM, for its dashboards.

`model_name` is the servable, `engine` its version: the engines of a version are counted together.
"""

from collections.abc import Iterable

from mindspore_serving.master import status
from mindspore_serving.master.metrics import cache_used
from mindspore_serving.master.registry import ServableService
from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.exposition import Page

_LABELS = ("model_name", "engine")
_GAUGES = {  # vLLM's name -> field of the engine's stats
    "num_requests_running": "num_running",
    "num_requests_waiting": "num_waiting",
}
_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # of 1; the second is the older name
_COUNTERS = {
    "prompt_tokens_total": "num_prompt_tokens",
    "generation_tokens_total": "num_generated_tokens",
    "num_preemptions_total": "num_preemptions",
    "prefix_cache_queries_total": "num_cache_queries",
    "prefix_cache_hits_total": "num_cache_hits",
    "spec_decode_num_draft_tokens_total": "num_draft_tokens",
    "spec_decode_num_accepted_tokens_total": "num_accepted_tokens",
}
_HISTOGRAMS = {  # vLLM's name -> ours
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_seconds",
    "time_per_output_token_seconds": "inter_token_seconds",  # older name of the line above
    "e2e_request_latency_seconds": "generation_seconds",
    "request_queue_time_seconds": "queue_seconds",
    "request_prefill_time_seconds": "prefill_seconds",
    "request_decode_time_seconds": "decode_seconds",
    "request_inference_time_seconds": "inference_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generated_tokens",
}
_SUCCESS = Metric(
    "vllm:request_success_total",
    "counter",
    CATALOG["serving_llm_answers_total"].help,
    (*_LABELS, "finished_reason"),
)
_REASONS = ("stop", "length", "abort")


def _engine_metric(name: str, ours: str) -> Metric:
    """Return vLLM's metric of a field of the engine's stats."""
    is_counter = name.endswith("_total")
    described = f"As {ours} of the engine."
    return Metric(f"vllm:{name}", "counter" if is_counter else "gauge", described, _LABELS)


def _histogram(name: str, ours: str) -> Metric:
    metric = CATALOG[f"serving_llm_{ours}"]
    return Metric(f"vllm:{name}", "histogram", metric.help, _LABELS, metric.bounds)


ENGINE = {_engine_metric(name, ours): ours for name, ours in (_GAUGES | _COUNTERS).items()}
USAGE = [
    Metric(f"vllm:{name}", "gauge", CATALOG["serving_llm_cache_used_ratio"].help, _LABELS)
    for name in _USAGE
]
HISTOGRAMS = {_histogram(name, ours): f"serving_llm_{ours}" for name, ours in _HISTOGRAMS.items()}
NAMES = sorted(metric.name for metric in (*ENGINE, *USAGE, *HISTOGRAMS, _SUCCESS))


def add_models(page: Page, services: Iterable[ServableService]) -> None:
    """Add the metrics of the generating language models among `services`."""
    for service in services:
        if service.card is not None and service.card.can_generate:
            _add_model(page, service)


def _add_model(page: Page, service: ServableService) -> None:
    labels = service.name, str(service.version)
    present, totals = status.engine(service), service.totals.counts()
    for metric, name in ENGINE.items():
        values = totals.engine if metric.kind == "counter" else present
        page.add(metric, values.get(name, 0), *labels)
    for metric in USAGE:
        page.add(metric, cache_used(present) if present.get("num_blocks") else 0.0, *labels)
    for metric, ours in HISTOGRAMS.items():
        page.add(metric, totals.histogram(CATALOG[ours]), *labels)
    for reason in _REASONS:
        page.add(_SUCCESS, totals.answers[reason], *labels, reason)
