"""Requests to a language model that cost a client little and the server much.

Beside each, short requests to the model and to a classic servable must not be held up.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tests.chaos import asking, raw, states
from tests.chaos.asking import Ask
from tests.chaos.fault import Fault, Must, Scene, Step
from tests.chaos.server import Server

# A rule with a parameter that calls itself with the next one: the compiler follows it for ever.
ENDLESS_LARK = 'start: a::0x0\na::_: "x" | a::incr(_) "y"'
# After 40 letters there are 600 ways to go on, more than one step of a grammar may have.
NUM_WAYS = 600
WIDENING_LARK = "\n".join(
    [
        f"start: HEAD ({' | '.join(f'r{n}' for n in range(NUM_WAYS))})",
        "HEAD: /[a-zA-Z ]{40}/",
        "TAIL: /[a-z]+/",
        *[f'r{n}: TAIL "{n}"' for n in range(NUM_WAYS)],
    ]
)
MESSAGES = [{"role": "user", "content": "What is the sea?"}]
BESIDE = ("good", "tiny")
BAD = frozenset({400, 413, 422})
FINE = frozenset({200, 400, 413, 422})
MIB = 1 << 20


def rows() -> Iterator[Fault]:
    yield from _grammars()
    yield from _sizes()
    yield from _counts()


def _grammars() -> Iterator[Fault]:
    endless = {"structured_outputs": {"grammar": ENDLESS_LARK}}
    yield Fault(
        "an endless grammar, from two clients that leave",
        states.idle,
        _leave(endless, count=2),
        beside=("good",),
        is_short=True,
    )
    yield _row("an endless grammar", _chat(lambda: endless), must=BAD)
    dots = _chat(lambda: {"structured_outputs": {"regex": ".*" * 3000}})
    yield _row("a regular expression of 3,000 times .*", dots, count=2)
    many = {"structured_outputs": {"grammar": WIDENING_LARK}, "max_tokens": 64}
    name = "a grammar that is over its limits while it is generated"
    yield _row(name, _chat(lambda: many), count=2, must=BAD)
    nested: dict[str, Any] = {}
    for _ in range(30):
        nested = {"type": "object", "properties": {"a": nested}, "required": ["a"]}
    yield _row("a schema of 30 levels", _schema(nested))
    words = {"enum": [f"word-{n}" for n in range(4000)]}
    yield _row("a schema of 4,000 words", _schema(words))
    cases = {"allOf": [{"anyOf": [{"minLength": m * n} for m in range(3)]} for n in range(12)]}
    yield _row("a schema of 3 to the 12th cases", _schema(cases))
    choices = {"structured_outputs": {"choice": [f"{n} bottles" for n in range(3900)]}}
    yield _row("3,900 choices", _chat(lambda: choices), must=frozenset({200}))


def _sizes() -> Iterator[Fault]:
    yield _row(
        "a message of 85 MB",
        _chat(lambda: {"messages": [{"role": "user", "content": "a" * (85 * MIB)}]}),
        must=BAD,
    )
    yield _row(
        "a prompt of 20 million ids",
        _body("/v1/completions", lambda: b'{"prompt":[' + b"1," * (20 * MIB) + b"1]}"),
        must=BAD,
        peak=256,
        is_short=True,
    )
    yield _row(
        "10 million ids to be detokenized",
        _body("/detokenize", lambda: b'{"tokens":[' + b"1," * (10 * MIB) + b"1]}"),
        must=BAD,
        peak=256,
    )
    yield _row(
        "a bias for a million tokens",
        _chat(lambda: {"logit_bias": {str(n): 1 for n in range(1_000_000)}}),
        must=BAD,
    )
    deep = _body("/v1/chat/completions", lambda: b'{"messages":' + b"[" * MIB + b"]" * MIB + b"}")
    yield _row("arrays in arrays, a million", deep, must=BAD)
    digits = _body("/v1/completions", lambda: b'{"prompt":"a","max_tokens":' + b"9" * MIB + b"}")
    yield _row("a number of a million digits", digits, must=BAD)
    text = _body("/v1/completions", lambda: {"prompt": "the sea " * 8000})
    yield _row("a prompt of 60 kB", text, must=BAD)
    text = _body("/generate", lambda: {"inputs": "the sea " * 8000})
    yield _row("an input of 60 kB to TGI", text, must=BAD)
    options = _chat(lambda: {"chat_template_kwargs": {f"x{n}": "a" * 1000 for n in range(10_000)}})
    yield _row("template options of 10 MB", options)


def _counts() -> Iterator[Fault]:
    yield _row("10,000 messages", _chat(lambda: {"messages": MESSAGES * 10_000}), must=BAD)
    parts = [{"type": "text", "text": "a"}]
    message = _chat(lambda: {"messages": [{"role": "user", "content": parts * 100_000}]})
    yield _row("a message of 100,000 parts", message, must=BAD)
    yield _row("5,000 tools", _chat(lambda: {"tools": _tools(5000)}), must=BAD)
    required = _chat(lambda: {"tools": _tools(128), "tool_choice": "required"})
    yield _row("128 tools, one of which must be called", required)
    yield _row("100,000 stops", _chat(lambda: {"stop": [f"stop {n}" for n in range(100_000)]}))
    yield _row("a stop of 10 MB", _chat(lambda: {"stop": ["a" * (10 * MIB)]}))
    yield _row(
        "1 MB of words that may not come",
        _chat(lambda: {"bad_words": [f"word {n} " * 4 for n in range(20_000)]}),
        count=2,
        is_short=True,
    )
    prompts = _body("/v1/completions", lambda: {"prompt": ["a"] * 1000})
    yield _row("1,000 prompts in a request", prompts)
    texts = _body("/v1/embeddings", lambda: {"input": ["a b c"] * 100_000})
    yield _row("100,000 texts to embed", texts, must=BAD)
    answers = _body("/v1/completions", lambda: {"prompt": "a", "n": 16, "max_tokens": 900})
    yield _row("16 answers of 900 tokens", answers)


def _tools(count: int) -> list[dict[str, Any]]:
    form = {"type": "object", "properties": {"x": {}}}
    functions = [{"name": f"f{n}", "parameters": form} for n in range(count)]
    return [{"type": "function", "function": function} for function in functions]


def _row(
    name: str,
    ask: Callable[[Server], Ask],
    *,
    count: int = 1,
    must: frozenset[int] = FINE,
    peak: int | None = None,
    **more: Any,
) -> Fault:
    def act(scene: Scene) -> None:
        scene.cause(*[ask(scene.server) for _ in range(count)])

    return Fault(name, states.idle, act, Must(own=must, peak=peak), beside=BESIDE, **more)


def _chat(make: Callable[[], dict[str, Any]]) -> Callable[[Server], Ask]:
    return _body("/v1/chat/completions", lambda: {"messages": MESSAGES, "max_tokens": 4, **make()})


def _schema(schema: dict[str, Any]) -> Callable[[Server], Ask]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _chat(lambda: {"response_format": form})


def _body(path: str, make: Callable[[], Any]) -> Callable[[Server], Ask]:
    """`make` is called when the fault is done: bodies are large."""
    return lambda server: asking.post(server, path, make())


def _leave(fields: dict[str, Any], count: int) -> Step:
    """Send a chat with `fields` from clients that leave at once."""

    def act(scene: Scene) -> None:
        body = {"messages": MESSAGES, "max_tokens": 4, **fields}
        for _ in range(count):
            stream = raw.connect(scene.server)
            stream.sendall(raw.request(scene.server, "/v1/chat/completions", body))
            stream.settimeout(1.0)
            with suppress(TimeoutError):
                raise AssertionError(f"it was answered: {stream.recv(100)!r}")
            raw.reset(stream)

    return act
