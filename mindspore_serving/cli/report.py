"""Text that `serve` prints: where it listens, its methods, and how to call them.  No I/O."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from mindspore_serving.cli import example
from mindspore_serving.cli.client_commands import SET_KEY, Reach, join_address
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.examples import IDS, PNG
from mindspore_serving.core.service import ServableReadiness

Servable: TypeAlias = dict[str, Any]

_LOOPBACK = ("localhost", "::1", "[::1]")
_MAX_TOKENS = 64  # of the answers to example requests
SEQUENCE = ("Sequence-Id: 1", "Sequence-Start: true", "Sequence-End: true")
_QUESTION = "What is the capital of France?"


def warnings(settings: ServeSettings) -> Iterator[str]:
    """Iterate over warnings if the log, or other machines, can get the content of requests."""
    host = settings.host
    if settings.log_requests:
        yield (
            "WARNING: --log-requests writes the prompts and values of all clients to the log: "
            "everyone who can read the log can read them."
        )
    if settings.tls_cert or host in _LOOPBACK or host.startswith("127."):
        return
    yield (
        f"WARNING: listening on {host} without TLS: everyone who reaches this address can call "
        "every servable and read the traffic, API keys too.  Use --host 127.0.0.1, a firewall, or "
        "--tls-cert, --tls-key and --tls-ca."
    )


def model_warnings(servables: Iterable[Servable]) -> Iterator[str]:
    """Iterate over warnings of models that clients cannot call in the usual way."""
    for servable in servables:
        card = servable.get("model")
        if card is not None and not card["has_tokenizer"]:
            yield (
                f"WARNING: {servable['name']} has no tokenizer: prompts and answers are token ids, "
                "and chats and texts are refused.  Put tokenizer.json beside its weights."
            )


def ready(
    settings: ServeSettings,
    reach: Reach,
    servables: Iterable[Servable],
    seconds: float,
    unready: Iterable[ServableReadiness] = (),
) -> str:
    """Return the text that is printed when all models are loaded.

    `servables` are as `core.service.Control.describe` returns them; of those the `unready` cannot
    take requests yet.
    """
    ordered = sorted(servables, key=lambda servable: (servable["name"], servable["version"]))
    reasons = {row.name: row.reason for row in unready}
    return "\n".join([_headline(reasons, seconds), *_lines(settings, reach, ordered, reasons)])


def _headline(reasons: Mapping[str, str], seconds: float) -> str:
    if not reasons:
        return f"Ready after {seconds:.1f} s."
    names = ", ".join(reasons)
    return f"Started after {seconds:.1f} s, NOT READY: {names}.  Until then /readyz answers 503."


def _lines(
    settings: ServeSettings, reach: Reach, servables: list[Servable], reasons: Mapping[str, str]
) -> Iterator[str]:
    if reach.url:
        yield f"  REST  {reach.url}  (GET /docs, /health, /metrics, /servables)"
    if reach.grpc:
        yield f"  gRPC  {join_address(settings.host, settings.grpc_port)}"
    if reach.needs_key:
        yield f"  key   {SET_KEY}  (first, in the shell of the commands below)"
    is_only = sum("model" in servable for servable in servables) == 1
    for servable in servables:
        yield ""
        name, workers = servable["name"], servable["num_workers"]
        roles = ", ".join(f"{count} {role}" for role, count in servable.get("roles", {}).items())
        text = f"{name}, version {servable['version']}, {workers} worker{'s' * (workers != 1)}"
        yield f"{text} ({roles})" if roles else text
        if name in reasons:
            yield f"  NOT READY: {reasons[name]}"
        if "model" in servable:
            card = servable["model"]
            lines = card["summary"], card["memory"], servable["sampling"]
            yield from (f"  {line}" for line in lines if line)
            yield from _language_lines(reach, name, card, is_only=is_only)
        for method, names in servable["methods"].items():
            yield from _method_lines(reach, name, method, names)
    yield ""
    yield from _file_line(reach, servables)
    yield "Replace the example values by your own.  Ctrl-C stops."


def _method_lines(reach: Reach, servable: str, method: str, row: dict[str, Any]) -> Iterator[str]:
    yield f"  {method}({', '.join(row['inputs'])}) -> {', '.join(row['outputs'])}"
    if "batch" in row:
        yield f"    batch: {row['batch']}"
    has_state = row.get("has_state", False)
    if has_state:
        yield "    state: kept for a sequence of requests (mindspore-serving docs sequences)"
    if reach.url or not has_state:
        headers = SEQUENCE if has_state else ()
        yield f"    {call_line(reach, servable, method, row['input_specs'], headers)}"


def _file_line(reach: Reach, servables: list[Servable]) -> Iterator[str]:
    """Tell how a file is sent, of which the example commands have the content."""
    for servable in servables:
        for method, names in servable["methods"].items():
            source = example.of_file(names["input_specs"], '{"instances": [{}]}')
            if source and reach.url:
                path = _path(servable["name"], method)
                yield f"With a FILE of yours:  {reach.curl(path, '', source)}"
                return


def _language_lines(
    reach: Reach, name: str, card: dict[str, Any], *, is_only: bool
) -> Iterator[str]:
    if not reach.url:
        return
    yield f"  page     {reach.url}/"
    yield f"  OpenAI   {reach.url}/v1   Anthropic, Ollama, TGI  {reach.url}"
    if _can_chat(card):
        options = () if is_only else ("--model", name)
        yield f"  chat     {reach.client('chat', *options)}"
    for path, body in _requests(name, card):
        yield f"    {reach.curl(path, json.dumps(body, ensure_ascii=False))}"


def _requests(name: str, card: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over path and body of a request for each use of a language model."""
    if card["can_generate"]:
        yield _generation(name, card)
    if card["can_embed"]:
        yield "/v1/embeddings", {"model": name, "input": _text_or_ids(card, _QUESTION)}
    if card["can_score"] and len(card["labels"]) == 1:
        documents = ["Paris is the capital of France.", "Rice is boiled in water."]
        yield "/v1/rerank", {"model": name, "query": _QUESTION, "documents": documents}
    elif card["can_score"]:
        yield "/v1/classify", {"model": name, "input": _QUESTION}


def _generation(name: str, card: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if not _can_chat(card):
        prompt = _text_or_ids(card, "Once upon a time")
        return "/v1/completions", {"model": name, "prompt": prompt, "max_tokens": _MAX_TOKENS}
    content: Any = _QUESTION
    if card["takes_images"]:
        url = {"url": f"data:image/png;base64,{PNG}"}
        content = [
            {"type": "text", "text": "What is in this image?"},
            {"type": "image_url", "image_url": url},
        ]
    messages = [{"role": "user", "content": content}]
    body = {"model": name, "messages": messages, "max_tokens": _MAX_TOKENS}
    return "/v1/chat/completions", body


def _can_chat(card: dict[str, Any]) -> bool:
    return bool(card["can_generate"] and card["has_chat_template"] and card["has_tokenizer"])


def _text_or_ids(card: dict[str, Any], text: str) -> Any:
    return text if card["has_tokenizer"] else list(IDS)


def call_line(
    reach: Reach,
    servable: str,
    method: str,
    specs: Iterable[dict[str, Any]],
    headers: Sequence[str] = (),
) -> str:
    """Return a shell command that calls `method`; `specs` describe its inputs.

    `headers` are those of a request over HTTP.
    """
    if not reach.url:
        source, body = example.body(specs, "{}")
        return reach.predict(servable, method, body, source)
    source, body = example.body(specs, '{"instances": [{}]}')
    return reach.curl(_path(servable, method), body, source, headers)


def _path(servable: str, method: str) -> str:
    return f"/model/{quote(servable)}:{quote(method)}"
