"""A model whose answers are written down, behind the routes under test; and calls of them."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.routing import BaseRoute

from mindspore_serving.core.llm_messages import (
    METHODS,
    Chunk,
    Event,
    Finished,
    Generate,
    GeneratedToken,
    LLMRequest,
    Started,
    decode_request,
    encode_events,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import Reply, ServableReadiness
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import LanguageModels
from mindspore_serving.frontends.http.app import make_app
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.metrics.exposition import Page
from tests.cards import CARD
from tests.frontends.inference import FakeCall, FakeInference

Answer = Sequence[Event] | ServingError


class ScriptedInference(FakeInference):
    """Answers each request with the next of `answers`; keeps the last to the end."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__()
        self.answers = answers
        self.stays_open = False  # say the answer, and then nothing
        self.fails_with: ServingError | None = None  # after the answer

    @property
    def sent(self) -> list[LLMRequest]:
        return [decode_request(call.request.method, call.request.body) for call in self.calls]

    @property
    def timeouts(self) -> list[float | None]:
        """Of those, in seconds."""
        return [call.request.timeout for call in self.calls]

    def received(self, call: FakeCall) -> None:
        assert call.request.method in METHODS
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ServingError):
            call.reply(Reply(failure=answer))
            return
        call.reply(*(Reply([encode_events([event])], is_last=False) for event in answer))
        if not self.stays_open:
            call.reply(Reply(failure=self.fails_with))


@dataclass
class ScriptedControl:
    models: list[tuple[str, int, ModelCard]]
    has_language_models: bool = True
    is_ready: bool = True
    is_starting: bool = False
    observed: list[dict[str, Any]] = field(default_factory=list)

    def observe(self) -> list[dict[str, Any]]:
        return self.observed

    def readiness(self) -> list[ServableReadiness]:
        return []

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        return self.models


class Server:
    """The application of some routes over a scripted model."""

    def __init__(
        self,
        make_routes: Callable[[AppState], list[BaseRoute]],
        *answers: Answer,
        models: Sequence[tuple[str, int, ModelCard]] = (("tiny", 1, CARD),),
        max_body: int = 10_000,
    ) -> None:
        self.inference = ScriptedInference(list(answers))
        self.control = ScriptedControl(list(models))
        known = LanguageModels(self.inference, self.control)
        self.state = AppState(known, self.inference, self.control, max_body)
        self.app = make_app(
            self.inference,
            self.control,
            Page,
            rest=MsRest(max_body),
            routes=make_routes(self.state),
        )

    @property
    def sent(self) -> Generate:
        """The last one."""
        request = self.inference.sent[-1]
        assert isinstance(request, Generate)
        return request

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, **options)

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.send("POST", path, json=body)


def token(number: int, text: str, logprob: float | None = None, **options: Any) -> GeneratedToken:
    """`data` may be given for part of a character."""
    data = options.pop("data", text.encode())
    special = options.pop("is_special", False)
    tops = tuple(options.pop("top", ()))
    return GeneratedToken(number, text, data, special, logprob, tops)


def begun(count: int = 4, seed: int = 42) -> Started:
    return Started(count, seed)


def ended(prompt: int = 4, generated: int = 2) -> Finished:
    return Finished(prompt, 0, generated)


def piece(*tokens: GeneratedToken, text: str | None = None, **options: Any) -> Chunk:
    """Of these tokens, and their text if no other is given."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = "".join(decoder.decode(one.data) for one in tokens if not one.is_special)
    ids = tuple(one.id for one in tokens)
    shown = found if text is None else text
    return Chunk(options.pop("index", 0), shown, ids, tuple(tokens), **options)


HELLO = token(5, " Hello", -0.5)
WORLD = token(6, " world", -0.25)
EOS = token(2, "</s>", -0.125, is_special=True)

STREAMED: Sequence[Event] = (
    begun(),
    piece(HELLO),
    piece(WORLD),
    piece(EOS, finish_reason="stop"),
    ended(generated=3),
)
WHOLE: Sequence[Event] = (
    begun(),
    piece(HELLO, WORLD, EOS, finish_reason="stop"),
    ended(generated=3),
)
