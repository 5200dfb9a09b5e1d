"""The metrics of what the master knows: methods, workers, engines.  Their meaning is in
`metrics.catalog`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore_serving.core.service import ServableReadiness
from mindspore_serving.errors import Code
from mindspore_serving.ipc.status import usage
from mindspore_serving.master import status
from mindspore_serving.master.deployed import Deployed
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.totals import WorkerCounts
from mindspore_serving.metrics.catalog import GENERATIONS, STEPS
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.metrics.series import Series

_PRESENT = {  # of an engine: metric -> number
    "serving_llm_requests_running": "num_running",
    "serving_llm_requests_waiting": "num_waiting",
}
_CACHE = {
    "serving_llm_cache_blocks": "num_blocks",
    "serving_llm_cache_blocks_free": "num_free_blocks",
}
_COUNTERS = {
    "serving_llm_steps_total": "num_steps",
    "serving_llm_prompt_tokens_total": "num_prompt_tokens",
    "serving_llm_generated_tokens_total": "num_generated_tokens",
    "serving_llm_prefix_cache_queries_total": "num_cache_queries",
    "serving_llm_prefix_cache_hits_total": "num_cache_hits",
    "serving_llm_prefix_cache_disk_hits_total": "num_disk_hits",
    "serving_llm_prefix_cache_disk_read_bytes_total": "num_disk_bytes_read",
    "serving_llm_prefix_cache_disk_written_bytes_total": "num_disk_bytes_written",
    "serving_llm_preemptions_total": "num_preemptions",
    "serving_llm_speculated_tokens_total": "num_draft_tokens",
    "serving_llm_accepted_tokens_total": "num_accepted_tokens",
}
_REASONS = ("stop", "length", "abort", "error")


def add_services(page: Page, services: Iterable[ServableService]) -> None:
    """What became of the requests to `services`, and what their workers do."""
    for service in services:
        for method in service.methods.values():
            _add_method(page, method.series)
        counted = service.totals.counted()
        _add_workers(page, service, counted)
        if service.card is not None:
            _add_engines(page, service, counted)
            if service.card.can_generate:
                _add_generations(page, service, counted)


def add_deployed(page: Page, rows: Iterable[tuple[Deployed, ServableReadiness]]) -> None:
    """Whether what is deployed takes requests, and how often its workers were replaced."""
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


def _add_workers(page: Page, service: ServableService, counted: WorkerCounts) -> None:
    labels = _labels(service)
    page.add("serving_workers", len(service.workers), *labels)
    page.add("serving_requests_waiting", status.num_waiting(service), *labels)
    page.add("serving_requests_running", status.num_running(service), *labels)
    page.add("serving_batch_size", counted.batch_sizes, *labels)
    for link in service.workers:
        used, own = usage(link.status), (*labels, link.name.rpartition(", ")[2])
        page.add("serving_worker_cpu_seconds_total", used.cpu_seconds, *own)
        page.add("serving_worker_resident_memory_bytes", used.resident_bytes, *own)
        page.add("serving_worker_open_fds", used.num_open_files, *own)


def _add_engines(page: Page, service: ServableService, counted: WorkerCounts) -> None:
    labels, present = _labels(service), status.engine(service)
    for adapter in service.card.adapters if service.card else ():
        page.add("serving_llm_adapter_loaded", 1, *labels, adapter)
    for metric, name in _COUNTERS.items():
        page.add(metric, counted.numbers[name], *labels)
    page.add(STEPS, counted.histogram(STEPS), *labels)
    for metric, name in _PRESENT.items():
        page.add(metric, present.get(name, 0), *labels)
    if present.get("num_blocks"):  # not known before the first step; an encoder has none
        for metric, name in _CACHE.items():
            page.add(metric, present[name], *labels)
        page.add("serving_llm_cache_used_ratio", cache_used(present), *labels)


def cache_used(present: Mapping[str, Any]) -> float:
    """The share of the cache's blocks that is not free."""
    return 1.0 - float(present["num_free_blocks"] / present["num_blocks"])


def _add_generations(page: Page, service: ServableService, counted: WorkerCounts) -> None:
    labels = _labels(service)
    for metric in GENERATIONS:
        page.add(metric, counted.histogram(metric), *labels)
    for reason in _REASONS:
        page.add("serving_llm_answers_total", counted.answers[reason], *labels, reason)


def _labels(service: ServableService) -> tuple[str, str]:
    return service.name, str(service.version)
