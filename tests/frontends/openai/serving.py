"""OpenAI's routes on a real socket, over a model that says what the test tells it to."""

import http.client
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    Generate,
    GeneratedToken,
    LLMRequest,
    Started,
    decode_request,
    encode_events,
    to_refused,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply, Request, ServableReadiness
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import LanguageModels, LanguageRules
from mindspore_serving.frontends.chat.refusals import LanguageRefusals
from mindspore_serving.frontends.http.app import guarded, make_router
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.keys import ApiKey, Keys
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.frontends.protocols import LINES
from mindspore_serving.frontends.state.runner import BatchRunner
from mindspore_serving.frontends.state.store import StateStore
from mindspore_serving.llm.processing.answer_format import (
    AnswerFormat,
    AnswerParser,
    to_answer_format,
)
from mindspore_serving.mcp.servers import McpServers
from mindspore_serving.metrics.exposition import Page
from tests import cards
from tests.frontends.inference import FakeCall, FakeInference
from tests.frontends.mounting import openai_routes
from tests.waiting import PATIENCE

MAX_BODY = 1 << 20
CARD = replace(
    cards.CARD,
    architecture="toy",
    dtype="float32",
    max_model_len=128,
    vocab_size=300,
    adapters=("tuned",),
    block_size=16,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_num_waiting=8,
    created=1700000000,
)

T = TypeVar("T")
Mount = Callable[[AppState], Sequence[BaseRoute]]
Said = Sequence[Event] | ServingError
"""What the model says: events one by one, an error in their place, or nothing more."""


def token(
    text: str, logprob: float | None = None, *top: GeneratedToken, **fields: Any
) -> GeneratedToken:
    """A token whose id is the code of its first character."""
    data = fields.get("data", text.encode())
    return GeneratedToken(ord(text[0]), text, data, fields.get("is_special", False), logprob, top)


def spoken(*texts: str, index: int = 0, reason: Any = "stop") -> list[Event]:
    """An answer in pieces of one token each."""
    pieces = [Chunk(index, text, (ord(text[0]),)) for text in texts]
    return [*pieces, Chunk(index, "", (2,), None, reason)]


def whole(*events: Event, num_prompt: int = 3, num_generated: int = 2) -> list[Event]:
    """`events` between the first and the last of a generation."""
    return [Started(num_prompt, 7), *events, Finished(num_prompt, 1, num_generated)]


class Parsing:
    """What a worker does to what its model writes: takes reasoning and calls of tools apart, and
    puts the answers to a request that is no stream together."""

    def __init__(self, request: Generate, card: ModelCard) -> None:
        self.format = to_answer_format(request, card)
        self._is_stream = request.is_stream
        self._parts: dict[int, list[Chunk]] = {}
        self._parsers: dict[int, AnswerParser] = {}

    def take(self, event: Event) -> list[Event]:
        if isinstance(event, Finished):
            count = sum(parser.num_reasoning_tokens for parser in self._parsers.values())
            return [replace(event, num_reasoning_tokens=count)]
        if not isinstance(event, Chunk) or not self.format.is_parsed:
            return [event]
        parts = self._parts.setdefault(event.index, [])
        parts.append(event)
        if not self._is_stream and event.finish_reason is None:
            return []
        del self._parts[event.index]
        parser = self._parsers.setdefault(event.index, AnswerParser(self.format))
        texts = [(part.text, len(part.token_ids)) for part in parts]
        return [*parser.parse(joined(parts), texts)]


def joined(parts: Sequence[Chunk]) -> Chunk:
    """All but the text."""
    last = parts[-1]
    tokens = [token for part in parts for token in part.tokens or ()]
    return replace(
        last,
        token_ids=tuple(token for part in parts for token in part.token_ids),
        tokens=None if last.tokens is None else tuple(tokens),
    )


class Call(FakeCall):
    """`sent` is what was asked."""

    def __init__(self, owner: "Inference", request: Request, on_reply: Any) -> None:
        super().__init__(owner, request, on_reply)
        self.sent: Any = decode_request(request.method, request.body)
        self.parsing: Parsing | None = None

    def parse(self, card: ModelCard) -> Said | None:
        """Prepare for the answer, as a worker does; what is said at once if it is refused."""
        if isinstance(self.sent, Generate):
            try:
                self.parsing = Parsing(self.sent, card)
            except ServingError as error:
                refused = to_refused(error)
                return error if refused is None else [refused]
        return None

    def say(self, said: Said, *, is_last: bool = True) -> None:
        """From any thread; each event is a reply of its own."""
        if isinstance(said, ServingError):
            replies = [Reply(failure=said)]
        else:
            events = [one for event in said for one in self._parsed(event)]
            replies = [Reply([encode_events([event])], is_last=False) for event in events]
            if is_last:
                replies[-1].is_last = True
        self.reply(*replies)

    def _parsed(self, event: Event) -> list[Event]:
        return [event] if self.parsing is None else self.parsing.take(event)


class Inference(FakeInference):
    """Answers with `script(request)`; None leaves the answer to the test."""

    make_call = Call

    def __init__(self, control: "Control") -> None:
        super().__init__()
        self._control = control
        self.script: Callable[[Any], Said | None] = lambda request: whole(*spoken("Hi", "!"))

    def received(self, call: Call) -> None:
        said = call.parse(self._control.card)
        said = self.script(call.sent) if said is None else said
        if said is not None:
            call.say(said)


class Control:
    """Serves "toy", and "vectors", which only embeds."""

    has_language_models = True
    is_ready = True
    is_starting = False

    def __init__(self) -> None:
        self.card = CARD

    def readiness(self) -> list[ServableReadiness]:
        return []

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        embeds = replace(CARD, can_generate=False, can_embed=True, adapters=())
        return [("toy", 1, self.card), ("vectors", 1, embeds)]


class Web:
    """A running server; `inference` is its model."""

    def __init__(
        self,
        background: BackgroundLoop,
        mount: Mount,
        keys: Sequence[ApiKey] = (),
        *,
        directory: str = "",
        limits: LanguageLimits | None = None,
        mcp: McpServers | None = None,
    ) -> None:
        self._background = background
        self.control = Control()
        self.inference = Inference(self.control)
        limits = limits or LanguageLimits()
        rules = LanguageRules(allows_priority=True, content=limits)
        models = LanguageModels(self.inference, self.control, rules)
        self.store = StateStore(directory)
        self.batches = BatchRunner(self.store, LINES, limits)
        state = AppState(
            models, self.inference, self.control, MAX_BODY,
            store=self.store, batches=self.batches if directory else None, mcp=mcp,
        )  # fmt: skip
        address = Address("127.0.0.1:0", "127.0.0.1", 0)
        rest = MsRest(MAX_BODY)
        found, served = Keys(keys), (self.inference, self.control)
        router = make_router(*served, Page, rest=rest, routes=mount(state))
        app = guarded(router, found, None)
        refusals = LanguageRefusals(self.control, ServerLimits())
        path = FastPath(self.inference, rest, found, open_other=refusals)
        self._server = HttpServer(address, app, path)
        background.run(self._start(router, is_durable=bool(directory)))
        self.port = self._server.port
        self.url = f"http://127.0.0.1:{self.port}/v1"

    @property
    def sent(self) -> Generate:
        """The last that was call."""
        return self.inference.calls[-1].sent

    @property
    def answer_format(self) -> AnswerFormat:
        """What a worker makes of that."""
        parsing = self.inference.calls[-1].parsing
        assert parsing is not None
        return parsing.format

    @property
    def held(self) -> int:
        """Bytes of bodies that the server holds, as it counts them."""
        return self._server.shared.memory.used

    def says(self, *events: Event, **counts: int) -> None:
        """From now on the answer to every generation is `events`."""
        self.inference.script = lambda request: whole(*events, **counts)

    def answers(self, event: Event) -> None:
        """From now on `event` alone is the answer."""
        self.inference.script = lambda request: [event]

    def call(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> "Answer":
        """`body` is JSON, unless it is bytes."""
        sent = body if isinstance(body, bytes | None) else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(verb, path, sent, headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def chat(self, **fields: Any) -> "Answer":
        messages = [{"role": "user", "content": "hello"}]
        return self.call("POST", "/v1/chat/completions", {"messages": messages, **fields})

    def complete(self, **fields: Any) -> "Answer":
        return self.call("POST", "/v1/completions", {"prompt": "abc", **fields})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the server's loop."""
        return self._background.run(work)

    async def _start(self, router: ASGIApp, *, is_durable: bool) -> None:
        await self._server.start(None)
        if is_durable:
            self.batches.start(router)

    def close(self) -> None:
        self._background.run(self._stop())

    async def _stop(self) -> None:
        await self.batches.close()
        await self._server.stop(grace=0.0)
        await self.store.close()


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def chunks(self) -> list[Any]:
        """The events of a stream, without [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-1] == ""
        found = [line.removeprefix("data: ") for line in lines[:-1]]
        return [json.loads(line) for line in found if line != "[DONE]"]


@contextmanager
def serving(
    mount: Mount = openai_routes, keys: Sequence[ApiKey] = (), **options: Any
) -> Iterator[Web]:
    """A server, stopped at the end; `options` are those of `Web`."""
    background = BackgroundLoop()
    web = Web(background, mount, keys, **options)
    try:
        yield web
    finally:
        web.close()
        background.close()


def all_sent(web: Web) -> list[LLMRequest]:
    """All that was call, in order."""
    return [call.sent for call in web.inference.calls]
