"""Every metric of ours: its name, kind, labels and meaning.  docs/metrics.md is made from it.

Names follow Prometheus' conventions: base units at their ends, and _total behind what only grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mindspore_serving.metrics.histogram import SECONDS, SIZES, TOKENS

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
SERVABLE = ("servable", "version")
METHOD = (*SERVABLE, "method")
WORKER = (*SERVABLE, "worker")


@dataclass(frozen=True, slots=True)
class Metric:
    """`bounds` are those of a histogram's buckets."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"serving_{name}_total", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"serving_{name}", "gauge", text, labels)


def _histogram(
    name: str, text: str, labels: tuple[str, ...], bounds: Sequence[float] = SECONDS
) -> Metric:
    return Metric(f"serving_{name}", "histogram", text, labels, bounds)


SERVER = (
    Metric("serving_build_info", "gauge", "Always 1; the label is our version.", ("version",)),
    _gauge("requests_in_flight", "Requests that were taken and are not answered yet."),
    _counter(
        "responses",
        "Responses of the HTTP and gRPC servers by protocol and status, also of requests that were "
        "refused before any servable had them; 499 and CANCELLED: the client left.",
        "protocol",
        "code",
    ),
    _gauge(
        "certificate_expiry_timestamp_seconds",
        "Seconds from 1970 to the end of the certificate in use.",
        "file",
    ),
    _counter(
        "file_reloads",
        "Changes of the files of a certificate or of API keys: ok, they are in use; failed, those "
        "of before are.",
        "file",
        "result",
    ),
    _gauge("ready", "1 if the servable version takes requests, else 0.", *SERVABLE),
    _gauge(
        "load_failed",
        "1 if the servable version that there is now could not be loaded, else 0.",
        *SERVABLE,
    ),
)

METHODS = (
    _counter("requests", "Requests to methods that were answered, by result.", *METHOD, "code"),
    _counter("instances", "Instances in the requests that succeeded.", *METHOD),
    _histogram(
        "request_seconds", "Seconds from a request's arrival to the end of its answer.", METHOD
    ),
    _histogram(
        "request_queue_seconds",
        "Seconds for which requests waited until a worker got them.",
        METHOD,
    ),
)

WORKERS = (
    _gauge("workers", "Workers that run and take requests.", *SERVABLE),
    _counter("worker_restarts", "Workers that were started in place of others.", *SERVABLE),
    _gauge("requests_waiting", "Requests that no worker has yet.", *SERVABLE),
    _gauge("requests_running", "Requests that workers have.", *SERVABLE),
    _histogram("batch_size", "Instances in the batches that stages ran.", SERVABLE, SIZES),
    _counter("worker_cpu_seconds", "Seconds of processor time of a worker's process.", *WORKER),
    _gauge("worker_resident_memory_bytes", "Memory in RAM of a worker's process.", *WORKER),
    _gauge("worker_open_fds", "File descriptors that a worker's process has open.", *WORKER),
)

ENGINES = (
    _gauge("llm_requests_running", "Sequences that the engines compute.", *SERVABLE),
    _gauge("llm_requests_waiting", "Sequences that wait for a place in the engines.", *SERVABLE),
    _gauge("llm_adapter_loaded", "1 for each LoRA adapter.", *SERVABLE, "adapter"),
    _gauge("llm_cache_blocks", "Blocks of the key-value caches.", *SERVABLE),
    _gauge(
        "llm_cache_blocks_free",
        "Blocks that are free, also those kept as cached prefixes.",
        *SERVABLE,
    ),
    _gauge("llm_cache_used_ratio", "Share of the blocks that is not free, 0 to 1.", *SERVABLE),
    _counter("llm_steps", "Steps that the engines computed.", *SERVABLE),
    _counter("llm_prompt_tokens", "Tokens of prompts that were taken.", *SERVABLE),
    _counter("llm_generated_tokens", "Tokens that were generated.", *SERVABLE),
    _counter(
        "llm_prefix_cache_queries",
        "Tokens of prompts that were looked up in the prefix cache.",
        *SERVABLE,
    ),
    _counter("llm_prefix_cache_hits", "Tokens that were found there.", *SERVABLE),
    _counter(
        "llm_prefix_cache_disk_hits",
        "Tokens whose keys and values were read from disk into the prefix cache.",
        *SERVABLE,
    ),
    _counter("llm_prefix_cache_disk_read_bytes", "Bytes of their files.", *SERVABLE),
    _counter(
        "llm_prefix_cache_disk_written_bytes", "Bytes of the files that were written.", *SERVABLE
    ),
    _counter(
        "llm_preemptions",
        "Times that a sequence gave its cache blocks to others, to be computed again.",
        *SERVABLE,
    ),
    _counter("llm_speculated_tokens", "Tokens that were guessed.", *SERVABLE),
    _counter("llm_accepted_tokens", "Guessed tokens that were right.", *SERVABLE),
)

GENERATIONS = (
    _histogram(
        "llm_time_to_first_token_seconds",
        "Seconds from a generation's arrival at its worker to its first token.",
        SERVABLE,
    ),
    _histogram(
        "llm_inter_token_seconds",
        "Seconds between two tokens of an answer.  Tokens of one step share its time.",
        SERVABLE,
    ),
    _histogram(
        "llm_generation_seconds",
        "Seconds from a generation's arrival at its worker to its last token.",
        SERVABLE,
    ),
    _histogram(
        "llm_queue_seconds",
        "Seconds from when a generation was ready to be computed to its first step.",
        SERVABLE,
    ),
    _histogram(
        "llm_prefill_seconds",
        "Seconds from a generation's first step to its first token.",
        SERVABLE,
    ),
    _histogram(
        "llm_decode_seconds",
        "Seconds from a generation's first token to its last one.",
        SERVABLE,
    ),
    _histogram(
        "llm_inference_seconds",
        "Seconds from a generation's first step to its last token.",
        SERVABLE,
    ),
    _histogram("llm_request_prompt_tokens", "Tokens of a prompt.", SERVABLE, TOKENS),
    _histogram(
        "llm_request_generated_tokens",
        "Tokens of all answers to a prompt.",
        SERVABLE,
        TOKENS,
    ),
)

STEPS = _histogram(
    "llm_batch_size", "Sequences that an engine computed in a step.", SERVABLE, SIZES
)
ANSWERS = _counter(
    "llm_answers",
    "Answers that ended: stop, length, abort (the client left) or error.",
    *SERVABLE,
    "finish_reason",
)

CATALOG: Mapping[str, Metric] = {
    one.name: one for one in (*SERVER, *METHODS, *WORKERS, *ENGINES, STEPS, *GENERATIONS, ANSWERS)
}
