"""Catalog of metrics: name, type, labels and meaning, from which docs/metrics.md is made.

Names follow Prometheus' conventions: base units as suffix, and _total for counters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mindspore_serving.metrics.histogram import SECONDS, SIZES, TOKENS

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
SERVABLE = ("servable", "version")
METHOD = (*SERVABLE, "method")
WORKER = (*SERVABLE, "worker")
UPSTREAM = (*WORKER, "upstream")


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a metric; `bounds` are those of a histogram's buckets."""

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
    Metric(
        "serving_build_info",
        "gauge",
        "Always 1; the label is the version of this package.",
        ("version",),
    ),
    _gauge("requests_in_flight", "Requests that were accepted and are not answered yet."),
    _counter(
        "responses",
        "Responses of the HTTP and gRPC servers by protocol and status, also of requests that were "
        "refused before a servable got them; 499 and CANCELLED: the client disconnected.",
        "protocol",
        "code",
    ),
    _counter(
        "key_requests",
        "Requests of an API key to a servable that have ended.",
        "key",
        "servable",
        "result",
    ),
    _counter(
        "key_tokens",
        "Tokens of prompts and answers of an API key, without the weights of models.",
        "key",
        "servable",
        "kind",
    ),
    _counter("key_instances", "Instances that an API key got from a servable.", "key", "servable"),
    _counter(
        "tenant_log_dropped",
        "Lines of the audit log or of payloads that were dropped: the queue was full, or they "
        "could not be written.",
        "log",
    ),
    _counter(
        "limits_exchanges",
        "Exchanges of the counts of limits with the store or the state: ok or failed; and wrong "
        "counts of other servers.",
        "result",
    ),
    _counter("key_refusals", "Requests over a limit of their API key.", "key", "limit"),
    _gauge(
        "certificate_expiry_timestamp_seconds",
        "Seconds since 1970 at which the certificate in use expires.",
        "file",
    ),
    _counter(
        "file_reloads",
        "Reloads of a certificate or of API keys after a file changed: ok, or failed if the old "
        "content stays in use.",
        "file",
        "result",
    ),
    _gauge("ready", "1 if the servable version accepts requests, else 0.", *SERVABLE),
    _gauge(
        "load_failed",
        "1 if the current servable version failed to load, else 0.",
        *SERVABLE,
    ),
)

METHODS = (
    _counter(
        "shadow_requests",
        "Copies of requests that a version got, by the result of comparing its answer with the "
        "first: equal, different, failed, or skipped.",
        *SERVABLE,
        "result",
    ),
    _counter("requests", "Answered requests to methods, by result.", *METHOD, "code"),
    _counter("instances", "Instances in successful requests.", *METHOD),
    _histogram(
        "request_seconds", "Seconds from a request's arrival to the end of its answer.", METHOD
    ),
    _histogram(
        "request_queue_seconds",
        "Seconds that requests were queued before a worker got them.",
        METHOD,
    ),
    _counter(
        "cache_requests",
        "Requests to methods with a cache of answers: hit, hit_store (in the store that servers "
        "share), miss, joined (answered with an equal "
        "request in flight) or skipped (too large, or in shared memory of the client).",
        *METHOD,
        "result",
    ),
    _counter(
        "cache_store",
        "What the store of shared answers did: hit, miss, late (no answer in time), failed, wrong "
        "(damaged or forged), skipped (it failed before, or is busy), written or unwritten.",
        *METHOD,
        "result",
    ),
    _counter("cache_evictions", "Answers evicted from a method's cache.", *METHOD),
    _gauge("cache_bytes", "Bytes of the answers in a method's cache.", *METHOD),
)

SEQUENCES = (
    _gauge("sequences", "Sequences of a method with a state that have not ended.", *METHOD),
    _counter(
        "sequences_evicted",
        "Sequences that ended without their last request: idle, or lost with their worker.",
        *METHOD,
        "reason",
    ),
)

WORKERS = (
    _gauge("workers", "Workers that run and accept requests.", *SERVABLE),
    _counter("worker_restarts", "Workers that were started to replace others.", *SERVABLE),
    _gauge("requests_waiting", "Requests in queues, which no worker has yet.", *SERVABLE),
    _gauge("requests_running", "Requests in flight in workers.", *SERVABLE),
    _histogram("batch_size", "Instances per batch of a stage.", SERVABLE, SIZES),
    _counter("worker_cpu_seconds", "Seconds of CPU time of a worker's process.", *WORKER),
    _gauge("worker_resident_memory_bytes", "Resident memory of a worker's process.", *WORKER),
    _gauge("worker_open_fds", "Open file descriptors of a worker's process.", *WORKER),
)

ENGINES = (
    _gauge("llm_requests_running", "Sequences that engines compute.", *SERVABLE),
    _gauge("llm_requests_waiting", "Sequences in the queues of engines.", *SERVABLE),
    _gauge("llm_adapter_loaded", "1 for each loaded LoRA adapter.", *SERVABLE, "adapter"),
    _gauge("llm_cache_blocks", "Blocks of the key-value caches.", *SERVABLE),
    _gauge(
        "llm_cache_blocks_free",
        "Free blocks, including those of cached prefixes.",
        *SERVABLE,
    ),
    _gauge("llm_cache_used_ratio", "Share of blocks that is not free, 0 to 1.", *SERVABLE),
    _gauge(
        "llm_cache_bytes",
        "Bytes of memory that the key-value caches take, those of cached prompts included.",
        *SERVABLE,
    ),
    _gauge("llm_cache_limit_bytes", "Bytes that the key-value caches may take.", *SERVABLE),
    _gauge(
        "llm_cache_target_bytes",
        "Bytes that the key-value caches may take at present to keep prompts: less than the limit "
        "while memory is short, or if several models share it.",
        *SERVABLE,
    ),
    _counter(
        "llm_cache_released_bytes",
        "Bytes of key-value caches that were returned to the system.",
        *SERVABLE,
    ),
    _counter("llm_steps", "Steps that engines computed.", *SERVABLE),
    _counter(
        "llm_native_steps",
        "Steps that the native part of the runtime combined computed.",
        *SERVABLE,
    ),
    _counter("llm_prompt_tokens", "Prompt tokens of accepted requests.", *SERVABLE),
    _counter("llm_generated_tokens", "Tokens that engines generated.", *SERVABLE),
    _counter(
        "llm_prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        *SERVABLE,
    ),
    _counter(
        "llm_prefix_cache_hits", "Prompt tokens that were hits in the prefix cache.", *SERVABLE
    ),
    *(
        _counter(f"llm_prefix_cache_{level}_{name}", meaning.format(store), *SERVABLE)
        for level, store in (("disk", "files"), ("store", "the store that servers share"))
        for name, meaning in (
            ("hits", "Tokens whose keys and values were read from {} into the prefix cache."),
            ("misses", "Blocks of prompts that were looked up in {} and were not there."),
            ("errors", "Failed reads and writes of blocks in {}, and blocks that were wrong."),
            ("read_bytes", "Bytes of blocks of the prefix cache read from {}."),
            ("written_bytes", "Bytes of blocks of the prefix cache written to {}."),
        )
    ),
    *(
        _counter(f"llm_handoff_{name}", meaning, *SERVABLE)
        for name, meaning in (
            (
                "prompts",
                "Prompts that a worker with the role prefill computed for one with decode.",
            ),
            ("failures", "Prompts that workers with prefill were asked for and did not compute."),
            ("local_prompts", "Prompts that workers with the role decode computed themselves."),
            ("prefills", "Prompts that workers with the role prefill were asked to compute."),
            ("tokens", "Tokens whose keys and values were moved from prefill to decode."),
            ("read_bytes", "Bytes of blocks that workers with the role decode have read."),
            ("written_bytes", "Bytes of blocks that workers with the role prefill have written."),
            ("seconds", "Seconds for which prompts waited for their blocks, in all."),
        )
    ),
    _counter(
        "llm_preemptions",
        "Preemptions of sequences, which are then computed again.",
        *SERVABLE,
    ),
    _counter("llm_speculated_tokens", "Draft tokens that were computed.", *SERVABLE),
    _counter("llm_accepted_tokens", "Draft tokens that were accepted.", *SERVABLE),
    _counter(
        "llm_forced_tokens",
        "Accepted draft tokens that a grammar forced, each of which saved a step.",
        *SERVABLE,
    ),
    _counter(
        "llm_expert_tokens",
        "Tokens that experts got, where ranks hold whole experts: of all layers and their experts.",
        *SERVABLE,
    ),
    _counter(
        "llm_expert_peak_tokens",
        "Of these, those of the rank that got the most in each layer; with even ranks, all tokens "
        "divided by the number of ranks.",
        *SERVABLE,
    ),
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

UPSTREAMS = (
    _gauge(
        "upstream_state",
        "1 for the state of an upstream: ready, slow start, busy, half-open, open, draining or "
        "unready.",
        *UPSTREAM,
        "state",
    ),
    _gauge("upstream_requests_open", "Requests that an upstream answers now.", *UPSTREAM),
    _gauge(
        "upstream_outstanding_tokens",
        "Estimated tokens of these requests that are not computed yet.",
        *UPSTREAM,
    ),
    _counter(
        "upstream_requests", "Requests sent to an upstream, repeated ones included.", *UPSTREAM
    ),
    _counter("upstream_errors", "Requests that failed by a fault of an upstream.", *UPSTREAM),
)

STEPS = _histogram("llm_batch_size", "Sequences per step of an engine.", SERVABLE, SIZES)
ANSWERS = _counter(
    "llm_answers",
    "Finished answers by reason: stop, length, abort (the client disconnected) or error.",
    *SERVABLE,
    "finish_reason",
)

CATALOG: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *(*SERVER, *METHODS, *SEQUENCES, *WORKERS, *ENGINES, *UPSTREAMS),
        *(STEPS, *GENERATIONS, ANSWERS),
    )
}
