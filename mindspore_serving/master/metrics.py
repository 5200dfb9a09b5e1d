"""Metrics of methods, workers and engines, as the master knows them.

Their meaning is in `metrics.catalog`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mindspore_serving.core.service import ServableReadiness
from mindspore_serving.errors import Code
from mindspore_serving.ipc.status import usage
from mindspore_serving.master import status
from mindspore_serving.master.active_deployment import ActiveDeployment
from mindspore_serving.master.answer_cache import AnswerCache
from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.routes import TrafficRoute
from mindspore_serving.master.sequenced import SequencedMethod
from mindspore_serving.master.totals import WorkerCounts
from mindspore_serving.metrics.catalog import GENERATIONS, STEPS
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.metrics.series import Series

_GAUGES = {  # metric -> field of the engine's stats
    "serving_llm_requests_running": "num_running",
    "serving_llm_requests_waiting": "num_waiting",
}
_CACHE = {
    "serving_llm_cache_blocks": "num_blocks",
    "serving_llm_cache_blocks_free": "num_free_blocks",
}
_BYTES = {
    "serving_llm_cache_bytes": "num_cache_bytes",
    "serving_llm_cache_limit_bytes": "num_cache_bytes_limit",
    "serving_llm_cache_target_bytes": "num_cache_bytes_target",
}
_LEVEL_COUNTERS = {
    "hits": "hits",
    "misses": "misses",
    "errors": "errors",
    "read_bytes": "bytes_read",
    "written_bytes": "bytes_written",
}
_COUNTERS = {
    "serving_llm_steps_total": "num_steps",
    "serving_llm_native_steps_total": "num_native_steps",
    "serving_llm_prompt_tokens_total": "num_prompt_tokens",
    "serving_llm_generated_tokens_total": "num_generated_tokens",
    "serving_llm_prefix_cache_queries_total": "num_cache_queries",
    "serving_llm_prefix_cache_hits_total": "num_cache_hits",
    **{
        f"serving_llm_prefix_cache_{level}_{metric}_total": f"num_{level}_{name}"
        for level in ("disk", "store")
        for metric, name in _LEVEL_COUNTERS.items()
    },
    "serving_llm_handoff_prompts_total": "num_handoffs",
    "serving_llm_handoff_failures_total": "num_handoffs_failed",
    "serving_llm_handoff_local_prompts_total": "num_handoffs_local",
    "serving_llm_handoff_prefills_total": "num_handoffs_computed",
    "serving_llm_handoff_tokens_total": "num_handoff_tokens",
    "serving_llm_handoff_read_bytes_total": "num_handoff_bytes_read",
    "serving_llm_handoff_written_bytes_total": "num_handoff_bytes_written",
    "serving_llm_cache_released_bytes_total": "num_cache_bytes_released",
    "serving_llm_preemptions_total": "num_preemptions",
    "serving_llm_speculated_tokens_total": "num_draft_tokens",
    "serving_llm_accepted_tokens_total": "num_accepted_tokens",
    "serving_llm_forced_tokens_total": "num_forced_tokens",
    "serving_llm_expert_tokens_total": "num_expert_tokens",
    "serving_llm_expert_peak_tokens_total": "num_expert_tokens_peak",
}
_UPSTREAM = {  # metric -> field of an upstream's report
    "serving_upstream_requests_open": "open",
    "serving_upstream_outstanding_tokens": "outstanding",
    "serving_upstream_requests_total": "requests",
    "serving_upstream_errors_total": "errors",
}
_REASONS = ("stop", "length", "abort", "error")


def add_services(page: Page, services: Iterable[ServableService]) -> None:
    """Add the metrics of `services`: their requests, workers and engines."""
    for service in services:
        for method in service.methods.values():
            _add_method(page, method.series)
            if isinstance(method, SequencedMethod):
                _add_sequences(page, method)
            if method.cache is not None:
                _add_cache(page, method.series.labels, method.cache)
            if method.shared_answers is not None:
                for result, count in asdict(method.shared_answers.counts).items():
                    page.add("serving_cache_store_total", count, *method.series.labels, result)
        totals = service.totals.counts()
        _add_workers(page, service, totals)
        if service.card is not None:
            _add_engines(page, service, totals)
            if service.card.can_generate:
                _add_generations(page, service, totals)


def add_shadows(page: Page, routes: Iterable[TrafficRoute]) -> None:
    """Add the results of comparing answers of shadow versions."""
    for route in routes:
        for version in sorted(route.rule.shadows.keys() | route.shadow_counts.keys()):
            for result, count in asdict(route.counts_of(version)).items():
                page.add("serving_shadow_requests_total", count, route.name, str(version), result)


def add_deployed(page: Page, rows: Iterable[tuple[ActiveDeployment, ServableReadiness]]) -> None:
    """Add the readiness of deployments, and the number of restarts of their workers."""
    for deployed, readiness in rows:
        labels = readiness.name, str(readiness.version)
        page.add("serving_ready", int(readiness.is_ready), *labels)
        page.add("serving_worker_restarts_total", deployed.num_restarts, *labels)


def _add_method(page: Page, series: Series) -> None:
    for code, count in series.codes.items():
        page.add("serving_requests_total", count, *series.labels, Code(code).name.lower())
    page.add("serving_instances_total", series.num_instances, *series.labels)
    page.add("serving_request_seconds", series.seconds, *series.labels)
    page.add("serving_request_queue_seconds", series.waits, *series.labels)


def _add_sequences(page: Page, method: SequencedMethod) -> None:
    labels, sequences = method.series.labels, method.sequences
    page.add("serving_sequences", len(sequences), *labels)
    for reason, count in sequences.num_evicted.items():
        page.add("serving_sequences_evicted_total", count, *labels, reason)


def _add_cache(page: Page, labels: tuple[str, str, str], cache: AnswerCache) -> None:
    for result, count in asdict(cache.counts).items():
        page.add("serving_cache_requests_total", count, *labels, result)
    page.add("serving_cache_evictions_total", cache.num_evicted, *labels)
    page.add("serving_cache_bytes", cache.num_bytes, *labels)


def _add_workers(page: Page, service: ServableService, totals: WorkerCounts) -> None:
    labels = _labels(service)
    page.add("serving_workers", len(service.workers), *labels)
    page.add("serving_requests_waiting", status.num_waiting(service), *labels)
    page.add("serving_requests_running", status.num_running(service), *labels)
    page.add("serving_batch_size", totals.batch_sizes, *labels)
    for link in service.workers:
        used, worker_labels = usage(link.status), (*labels, link.name.rpartition(", ")[2])
        page.add("serving_worker_cpu_seconds_total", used.cpu_seconds, *worker_labels)
        page.add("serving_worker_resident_memory_bytes", used.resident_bytes, *worker_labels)
        page.add("serving_worker_open_fds", used.num_open_files, *worker_labels)
        _add_upstreams(page, worker_labels, link)


def _add_engines(page: Page, service: ServableService, totals: WorkerCounts) -> None:
    labels, present = _labels(service), status.engine(service)
    for adapter in service.card.adapters if service.card else ():
        page.add("serving_llm_adapter_loaded", 1, *labels, adapter)
    for metric, name in _COUNTERS.items():
        page.add(metric, totals.engine[name], *labels)
    seconds = totals.engine["num_handoff_microseconds"] / 1e6
    page.add("serving_llm_handoff_seconds_total", seconds, *labels)
    page.add(STEPS, totals.histogram(STEPS), *labels)
    for metric, name in _GAUGES.items():
        page.add(metric, present.get(name, 0), *labels)
    if present.get("num_blocks"):  # unknown before the first step; an encoder has none
        for metric, name in _CACHE.items():
            page.add(metric, present[name], *labels)
        page.add("serving_llm_cache_used_ratio", cache_used(present), *labels)
    if present.get("num_cache_bytes_limit"):  # other engines do not tell
        for metric, name in _BYTES.items():
            page.add(metric, present[name], *labels)


def cache_used(present: Mapping[str, Any]) -> float:
    """Return the share of the cache's blocks that is not free."""
    return 1.0 - float(present["num_free_blocks"] / present["num_blocks"])


def _add_generations(page: Page, service: ServableService, totals: WorkerCounts) -> None:
    labels = _labels(service)
    for metric in GENERATIONS:
        page.add(metric, totals.histogram(metric), *labels)
    for reason in _REASONS:
        page.add("serving_llm_answers_total", totals.answers[reason], *labels, reason)


def _add_upstreams(page: Page, labels: tuple[str, ...], link: Link) -> None:
    for row in link.engine_metrics.upstreams:
        page.add("serving_upstream_state", 1, *labels, row.name, row.state)
        for metric, name in _UPSTREAM.items():
            page.add(metric, getattr(row, name), *labels, row.name)


def _labels(service: ServableService) -> tuple[str, str]:
    return service.name, str(service.version)
