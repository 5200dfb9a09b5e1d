"""Names of commands and options of other model servers, and what to write here instead.

It knows words, not what our options do.  A name that this server has too, as `--max-model-len`, has
no row.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from mindspore_serving.errors import did_you_mean

# Commands of other programs by ours.
_VERBS = {
    "serve": ("server", "start", "launch_server", "up", "host", "tritonserver"),
    "run MODEL": ("generate", "complete"),
    "chat": ("ask", "talk", "prompt", "repl"),
    "models": ("model",),
    "list": ("ls", "images"),
    "pull NAME": ("download", "fetch"),
    "remove NAME": ("rm", "delete"),
    "show MODEL": ("inspect",),
    "status": ("ps", "health", "ready", "workers"),
    "bench": ("benchmark", "perf", "load-test", "perf_analyzer"),
    "predict": ("infer", "call", "request", "invoke"),
    "load": ("register", "add"),
    "unload": ("unregister",),
    "convert": ("export",),
    "doctor": ("check", "info", "env", "collect-env", "devices"),
    "worker --join HOST:PORT": ("join",),
    "--help": ("help",),
    "--version": ("version",),
}
_BY_VERB = {verb: command for command, verbs in _VERBS.items() for verb in verbs}
_ADVICE = {  # of commands that have none of ours
    "stop": "Ctrl-C or SIGTERM ends `serve`; `unload NAME` unloads one servable",
    "create": "nothing is copied: give `serve` or `run` the Modelfile, or the model's file or "
    "directory",
}

ENGINE_OPTION = "--llm-option"
_MODEL = "give the model as an argument: {}"
_ALL_LAYERS = (
    "leave it out: a model is computed on one device, which --device-type chooses; "
    "with --engine llama.cpp write --engine-option n_gpu_layers={}"
)
_CACHE = (
    "set the bytes of the cache: --llm-option kv_cache_memory=2e9 (of the engine vllm also "
    "--engine-option gpu_memory_utilization={})"
)
_REVISION = "write it behind the model's name: ORG/NAME@{}"
_CACHE_VARIABLE = "set the variable HF_HOME={}"
_METRICS = "leave it out: GET /metrics of the HTTP port has them"
_URL = "give the URL as the first argument: {}"
_GROWS = "leave it out: memory is taken as it is needed"

# By server: name, and what to write; "{}" is the value that was given.  A text
# that begins with "--" is options, any other a sentence.
_OPTIONS: dict[str, dict[str, str]] = {
    "vLLM": {
        "--model": _MODEL,
        "--served-model-name": "--name {}",
        "--tensor-parallel-size": "--llm-option tensor_parallel={}",
        "-tp": "--llm-option tensor_parallel={}",
        "--pipeline-parallel-size": "--llm-option pipeline_parallel={}",
        "-pp": "--llm-option pipeline_parallel={}",
        "--data-parallel-size": "--num-parallel-workers {}",
        "-dp": "--num-parallel-workers {}",
        "--api-server-count": "--front-ends {}",
        "--device": "--device-type CPU, GPU or Ascend",
        "--gpu-memory-utilization": _CACHE,
        "--kv-cache-memory-bytes": "--llm-option kv_cache_memory={}",
        "--enforce-eager": "leave it out, or with --engine vllm write --engine-option "
        "enforce_eager=true",
        "--trust-remote-code": "leave it out: code in a checkpoint is not run; with --engine vllm "
        "write --engine-option trust_remote_code=true",
        "--enable-lora": "leave it out: --adapter NAME=DIR serves an adapter",
        "--lora-modules": "--adapter {}",
        "--speculative-config": "--draft PATH",
        "--speculative-model": "--draft {}",
        "--tokenizer": "leave it out: the tokenizer is in the model's directory or file",
        "--revision": _REVISION,
        "--download-dir": _CACHE_VARIABLE,
        "--chat-template": "put the template into the model's directory as chat_template.jinja",
        "--enable-auto-tool-choice": "leave it out: calls of tools are read by the chat template",
        "--tool-call-parser": "leave it out: calls of tools are read by the chat template",
        "--reasoning-parser": "leave it out: reasoning is read by the chat template",
        "--ssl-keyfile": "--tls-key {}",
        "--ssl-certfile": "--tls-cert {}",
        "--ssl-ca-certs": "--tls-ca {}",
        "--allowed-origins": "--allow-origin {}",
        "--uvicorn-log-level": "--log-level {}",
        "--enable-log-requests": "--log-requests",
        "--disable-log-requests": "leave it out: requests are logged only with --log-requests",
        "--disable-log-stats": _METRICS,
        "--override-generation-config": "--llm-option default_temperature=T, default_top_p=P, ...",
        "--task": "--llm-option embeddings=true, if a model that generates is to embed",
        "--runner": "--llm-option embeddings=true, if a model that generates is to embed",
        "--limit-mm-per-prompt": "--llm-option max_images=N, max_audios=N",
        "--otlp-traces-endpoint": "--trace-endpoint {}",
        "--collect-detailed-traces": "--trace-endpoint URL",
    },
    "llama.cpp": {
        "-m": _MODEL,
        "--model": _MODEL,
        "-c": "--max-model-len {}",
        "--ctx-size": "--max-model-len {}",
        "-ngl": _ALL_LAYERS,
        "--n-gpu-layers": _ALL_LAYERS,
        "--gpu-layers": _ALL_LAYERS,
        "-np": "--llm-option max_num_seqs={}",
        "--parallel": "--llm-option max_num_seqs={}",
        "-t": "--llm-option num_threads={}",
        "--threads": "--llm-option num_threads={}",
        "-b": "--llm-option max_num_batched_tokens={}",
        "--batch-size": "--llm-option max_num_batched_tokens={}",
        "-n": "--llm-option default_max_tokens={}",
        "--n-predict": "--llm-option default_max_tokens={}",
        "--predict": "--llm-option default_max_tokens={}",
        "--reasoning-budget": "--llm-option default_thinking_token_budget={}",
        "--temp": "--llm-option default_temperature={}",
        "--top-k": "--llm-option default_top_k={}",
        "--top-p": "--llm-option default_top_p={}",
        "--min-p": "--llm-option default_min_p={}",
        "--repeat-penalty": "--llm-option default_repetition_penalty={}",
        "-a": "--name {}",
        "--alias": "--name {}",
        "-hf": _MODEL,
        "--hf-repo": _MODEL,
        "--hf-file": "write it behind the model's name: ORG/NAME:{}",
        "-mm": "--mmproj {}",
        "--no-mmproj": "--llm-option max_images=0",
        "--lora": "--adapter NAME={}",
        "-md": "--draft {}",
        "--model-draft": "--draft {}",
        "--draft-max": "--llm-option num_speculative_tokens={}",
        "--embedding": "--llm-option embeddings=true",
        "--rerank": "--llm-option ranking=true",
        "-ctk": "--llm-option kv_cache_dtype={}",
        "--cache-type-k": "--llm-option kv_cache_dtype={}",
        "-fa": "leave it out",
        "--flash-attn": "leave it out",
        "--jinja": "leave it out: the model's chat template is used",
        "--no-mmap": "leave it out",
        "--mlock": "leave it out",
        "--ssl-key-file": "--tls-key {}",
        "--ssl-cert-file": "--tls-cert {}",
        "--threads-http": "--front-ends {}",
        "--metrics": _METRICS,
        "--verbose": "--log-level debug",
    },
    "Ollama": {
        "--num-ctx": "--max-model-len {}",
        "--num-thread": "--llm-option num_threads={}",
        "--num-gpu": _ALL_LAYERS,
        "--num-predict": "--llm-option default_max_tokens={}",
        "--keepalive": "leave it out: a model stays loaded; --max-loaded N bounds how many do",
    },
    "Triton": {
        "--model-repository": _MODEL,
        "--model-store": _MODEL,
        "--load-model": "give the paths of the models to serve as arguments",
        "--model-control-mode": "--poll SECONDS for poll, --allow-loading for explicit; none is "
        "the default",
        "--repository-poll-secs": "--poll {}",
        "--strict-readiness": "leave it out: /readyz and /v2/health/ready answer 200 when loading "
        "has ended; --strict ends the server if a model cannot be served",
        "--exit-on-error": "--strict",
        "--strict-model-config": "leave it out: the server reads inputs and outputs from models",
        "--disable-auto-complete-config": "leave it out",
        "--http-address": "--host {}",
        "--grpc-address": "--host {}",
        "--allow-http": "--no-http, if there is to be none",
        "--allow-grpc": "--no-grpc, if there is to be none",
        "--allow-metrics": _METRICS,
        "--metrics-port": _METRICS,
        "--http-thread-count": "--front-ends {}",
        "--grpc-server-cert": "--tls-cert {}",
        "--grpc-server-key": "--tls-key {}",
        "--grpc-root-cert": "--tls-ca {}",
        "--grpc-use-ssl": "--tls-cert FILE --tls-key FILE",
        "--log-verbose": "--log-level debug",
        "--trace-config": "--trace-endpoint URL",
        "--exit-timeout-secs": "--shutdown-timeout {}",
        "--pinned-memory-pool-byte-size": _GROWS,
        "--cuda-memory-pool-byte-size": _GROWS,
    },
    "TGI": {
        "--model-id": _MODEL,
        "--revision": _REVISION,
        "--num-shard": "--llm-option tensor_parallel={}",
        "--sharded": "--llm-option tensor_parallel=N",
        "--quantize": "--quantization int8 or int4; a checkpoint that is quantized needs no option",
        "--hostname": "--host {}",
        "--max-concurrent-requests": "--max-requests {}",
        "--max-input-length": "--max-model-len N, tokens of prompt and answer together",
        "--max-input-tokens": "--max-model-len N, tokens of prompt and answer together",
        "--max-total-tokens": "--max-model-len {}",
        "--max-batch-prefill-tokens": "--llm-option max_num_batched_tokens={}",
        "--max-batch-total-tokens": _CACHE,
        "--max-batch-size": "--llm-option max_num_seqs={}",
        "--max-best-of": "--max-n {}",
        "--cuda-memory-fraction": _CACHE,
        "--lora-adapters": "--adapter {}",
        "--tokenizer-config-path": "leave it out: the tokenizer is in the model's directory",
        "--json-output": "--log-format json",
        "--otlp-endpoint": "--trace-endpoint {}",
        "--cors-allow-origin": "--allow-origin {}",
        "--trust-remote-code": "leave it out: code in a checkpoint is not run",
    },
    "SGLang": {
        "--model-path": _MODEL,
        "--tp": "--llm-option tensor_parallel={}",
        "--tp-size": "--llm-option tensor_parallel={}",
        "--context-length": "--max-model-len {}",
        "--mem-fraction-static": _CACHE,
        "--max-running-requests": "--llm-option max_num_seqs={}",
        "--chunked-prefill-size": "--llm-option max_num_batched_tokens={}",
    },
    "TensorFlow Serving": {
        "--rest-api-port": "--http-port {}",
        "--model-name": "--name {}",
        "--model-base-path": _MODEL,
        "--model-config-file": "--config FILE",
        "--enable-batching": "--max-batch-delay-ms MS",
    },
    "TorchServe": {
        "--models": "give the paths of the models to serve as arguments",
        "--ts-config": "--config FILE",
    },
    "MindSpore Serving 3.0.0rc1": {
        "--grpc-library": "leave it out: the server has an HTTP/2 of its own for gRPC",
    },
    "uvicorn": {
        "--workers": "--num-parallel-workers {} for models, --front-ends {} for processes that "
        "speak HTTP",
    },
}


# The same of programs that talk with servers, for commands with a URL.
_CLIENT_OPTIONS: dict[str, dict[str, str]] = {
    "other clients": {
        "-u": _URL,
        "--url": _URL,
        "--base-url": _URL,
        "--server": _URL,
        "--addr": _URL,
        "--host": "give the URL as the first argument, as http://{}:1500",
        "--port": "give the URL as the first argument, as http://127.0.0.1:{}",
    },
}
# The same for a conversation.
_CHAT_OPTIONS: dict[str, dict[str, str]] = {
    "llama.cpp": {
        "-p": "--prompt {}",
        "-sys": "--system {}",
        "--system-prompt": "--system {}",
        "-n": "--max-tokens {}",
        "--n-predict": "--max-tokens {}",
        "--predict": "--max-tokens {}",
        "--temp": "--temperature {}",
    },
    "Ollama": {"--num-predict": "--max-tokens {}"},
    "transformers": {"--max-new-tokens": "--max-tokens {}"},
}
# The same of tools that measure servers, for `bench`.
_BENCH_OPTIONS: dict[str, dict[str, str]] = {
    "vLLM's bench": {
        "--base-url": _URL,
        "--num-prompts": "--requests {}",
        "--request-rate": "--rate {}",
        "--max-concurrency": "--concurrency {}",
        "--random-input-len": "--input-tokens {}",
        "--random-output-len": "--output-tokens {}",
        "--random-prefix-len": "--shared-prefix {}",
        "--dataset-path": '--prompts FILE, with lines {"prompt": ..., "max_tokens": ...}',
        "--dataset-name": "leave it out: prompts are random words, or those of --prompts FILE",
        "--save-result": "--json FILE",
        "--result-filename": "--json {}",
    },
    "guidellm": {
        "--target": _URL,
        "--rate-type": "--profile {}",
        "--max-requests": "--requests {}",
        "--max-seconds": "--requests N: a load has a number of requests, no duration",
        "--data": "--input-tokens N --output-tokens N, or --prompts FILE",
        "--output-path": "--json {}",
    },
    "aiperf": {
        "-u": _URL,
        "--url": _URL,
        "-m": "--model {}",
        "--request-count": "--requests {}",
        "--request-rate": "--rate {}",
        "--arrival-pattern": "--profile {}",
        "--isl": "--input-tokens {}",
        "--osl": "--output-tokens {}",
    },
}
# The tables of a command: the first that has a name counts.
_TABLES = {
    **dict.fromkeys(("serve", "config"), (_OPTIONS,)),
    "run": (_CHAT_OPTIONS, _OPTIONS),
    "chat": (_CHAT_OPTIONS, _CLIENT_OPTIONS),
    "bench": (_BENCH_OPTIONS, _CLIENT_OPTIONS),
    **dict.fromkeys(("predict", "status", "models", "load", "unload"), (_CLIENT_OPTIONS,)),
    **dict.fromkeys(("load-lora", "unload-lora", "log-level"), (_CLIENT_OPTIONS,)),
}


def of_command(word: str, commands: Collection[str]) -> str:
    """Return what to write instead of a word that is none of our `commands`."""
    text = f"there is no command {word!r}"
    if word in _ADVICE:
        return f"{text}: {_ADVICE[word]}"
    if word in _BY_VERB:
        return f"{text}: write 'mindspore-serving {_BY_VERB[word]}'"
    return text + did_you_mean(word, commands)


def of_options(
    words: Sequence[str], known: Collection[str], command: str, engine_names: Collection[str] = ()
) -> Iterator[str]:
    """Iterate over what to write instead of the options in `words` that another program has.

    `words` are those after the `command`, `known` its own options, and
    `engine_names` the names that --llm-option takes.
    """
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == "--":
            return
        flag, equals, value = word.partition("=")
        name = flag.replace("_", "-")
        if flag == ENGINE_OPTION:  # a name that the engine of another server has
            flag, _, value = (value or following).partition("=")
            if flag in engine_names:
                continue
            name, equals = f"--{flag.replace('_', '-')}", "="
        if not equals and not following.startswith("-"):
            value = following
        for table in _TABLES.get(command, ()):
            programs = [program for program, names in table.items() if name in names]
            if programs and name not in known:
                text = _text(table[programs[0]][name], value, command)
                yield f"{flag} is a name of {_joined(programs)}; here {text}"
                break


def _joined(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _text(instead: str, value: str, command: str) -> str:
    if instead in (_MODEL, _URL):
        value = f"{command} {value or ('PATH' if instead == _MODEL else 'URL')}"
    elif "{}" in instead and not value:
        value = "VALUE"
    write = "write " if instead.startswith("--") else ""
    text = instead.replace("{}", value)
    return write + text
