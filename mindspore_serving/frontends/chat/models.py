"""Language models as front ends see them: find one by name, send it a request, iterate the events.

Knows no protocol: each makes an `LLMRequest` of its own request and its own answer of the `Event`s.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias, TypeVar

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import (
    CODEC,
    METHODS,
    Chunk,
    Event,
    Finished,
    Generate,
    LLMRequest,
    Refused,
    RequestRefused,
    Started,
    decode_events,
    encode_request,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Control, Inference, Request
from mindspore_serving.errors import InvalidField, InvalidInputs, NotFound, ServingError
from mindspore_serving.frontends import access
from mindspore_serving.frontends.health import still_loading
from mindspore_serving.frontends.replies import Replies
from mindspore_serving.frontends.request_options import RequestOptions

DEFAULT_MAX_N = 16
ANY = frozenset({"", "default", "dummy", "tgi"})  # names that clients send for the only model

Answer = TypeVar("Answer")
Purpose: TypeAlias = Literal["generate", "embed", "score", "rank"]


class Generation:
    """The events of one `Generate`: await `begin`, then iterate.

    Leaving it before its end needs `cancel`, which frees what the request has; `with` does that.
    `limits` are those of Replies.
    """

    def __init__(
        self,
        inference: Inference,
        request: Request,
        limits: ServerLimits | None = None,
    ) -> None:
        self._events: deque[Event] = deque()
        self._replies = Replies(inference, request, limits)

    async def begin(self) -> Started:
        """The first event.  Raises RequestRefused, or another ServingError."""
        event = await self.next()
        if isinstance(event, Refused):
            raise RequestRefused(event)
        if not isinstance(event, Started):
            raise ServingError("the model gave no answer")
        return event

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The other events, `Finished` last.  Raises ServingError if the model is lost."""
        while True:
            event = await self.next()
            if event is None:
                raise ServingError("the model did not finish its answer")
            if isinstance(event, Finished):
                access.note_tokens(event.num_prompt_tokens, event.num_generated_tokens)
            yield event
            if isinstance(event, Finished):
                return

    async def written(
        self, first: bytes, write: Callable[[Event], bytes], fail: Callable[[Exception], bytes]
    ) -> AsyncIterator[bytes]:
        """What a client gets of an answer that has begun: `first`, then what `write` makes of each
        event, and at an error what `fail` makes of that.
        """
        if first:
            yield first
        try:
            async for event in self:
                made = write(event)
                if made:
                    yield made
        except Exception as error:
            yield fail(error)

    def cancel(self) -> None:
        """Nobody reads any more.  Harmless at the end."""
        self._replies.cancel()

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    async def next(self) -> Event | None:
        """The next event; None behind the last.  Raises ServingError if the model is lost."""
        while not self._events:
            reply = await self._replies.next()
            if reply is None:
                return None
            if reply.failure is not None:
                reply.raise_failure()
            for body in reply.instances:
                self._events += decode_events(body)
        return self._events.popleft()


@dataclass(frozen=True, slots=True)
class LanguageRules:
    """What clients may ask of language models.

    `max_n` answers to one prompt at most, a priority only if `allows_priority`, a chat template of
    their own only if `allows_templates`, the time that `limits` has, and what `content` has room
    for.
    """

    max_n: int = DEFAULT_MAX_N
    allows_priority: bool = False
    limits: ServerLimits = ServerLimits()
    content: LanguageLimits = LanguageLimits()
    allows_templates: bool = False

    def check(self, request: Generate) -> None:
        """Raises RequestRefused."""
        if request.params.n > self.max_n:
            text = f"n is {request.params.n}, expected at most {self.max_n} (--max-n)"
            raise RequestRefused(Refused("input", text, field="n"))
        if request.priority and not self.allows_priority:
            text = f"priority is {request.priority}, expected 0 without --allow-priority"
            raise RequestRefused(Refused("input", text, field="priority"))
        if request.chat_template and not self.allows_templates:
            text = "chat_template is given, expected none without --allow-chat-template"
            raise RequestRefused(Refused("input", text, field="chat_template"))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that takes requests; `adapter` if the name is that of a LoRA adapter of it."""

    name: str
    servable: str
    version: int
    card: ModelCard
    inference: Inference
    adapter: str = ""
    rules: LanguageRules = LanguageRules()

    def can(self, purpose: Purpose) -> bool:
        """An adapter can only generate; a classifier of one label ranks."""
        card = self.card
        if purpose == "generate":
            return card.can_generate
        can_read = card.can_embed if purpose == "embed" else card.can_score
        return can_read and not self.adapter and (purpose != "rank" or len(card.labels) == 1)

    def generate(self, request: Generate, options: RequestOptions) -> Generation:
        """Start a generation.  Raises RequestRefused for what clients may not ask for."""
        self.rules.check(request)
        if options.priority:
            request = msgspec.structs.replace(request, priority=request.priority + options.priority)
        limits = self.rules.limits if request.is_stream else None
        return Generation(self.inference, self._wrap(request, options), limits)

    async def call(
        self, request: LLMRequest, expected: type[Answer], options: RequestOptions
    ) -> Answer:
        """The one answer to any other request.  Raises RequestRefused, or another ServingError."""
        with Generation(self.inference, self._wrap(request, options)) as generation:
            event = await generation.next()
        if isinstance(event, Refused):
            raise RequestRefused(event)
        if not isinstance(event, expected):
            raise ServingError("the model gave no answer")
        return event

    def _wrap(self, request: LLMRequest, options: RequestOptions) -> Request:
        most = self.rules.limits.request_timeout
        timeout = min(options.timeout or most, most)
        method = next(name for name, kind in METHODS.items() if kind is type(request))
        self.rules.content.check(request)
        try:
            body = encode_request(request)
        except OverflowError:
            raise InvalidInputs("a number is an integer of over 64 bits, expected fewer") from None
        wrapped = Request(
            self.servable, method, self.version, CODEC, body, timeout=timeout, is_stream=True
        )
        if isinstance(request, Generate):
            wrapped.prefix = _prefix(request)
        return wrapped


def _prefix(request: Generate) -> Iterator[str | Sequence[int]]:
    """What two requests must have in common to share the beginning of a prompt.  Nothing in it is
    empty: who reads so many characters has read no more texts.
    """
    yield f"{request.adapter} {request.cache_salt} {len(request.tools or ())}"
    if request.prompt is not None:
        yield request.prompt or " "
    for message in request.messages or ():
        role, content = message.get("role"), message.get("content")
        yield _text(role)
        for part in content if isinstance(content, list) else (content,):
            yield _text(part.get("text") if isinstance(part, dict) else part)


def _text(value: object) -> str:
    return value if isinstance(value, str) and value else " "


def _is_any(name: str | None) -> bool:
    """Whether a client means the only model: some send their endpoint's URL as its name."""
    return name is None or name in ANY or name.startswith(("http://", "https://"))


class LanguageModels:
    """All that are served now.  Used on the event loop's thread."""

    def __init__(
        self, inference: Inference, control: Control, rules: LanguageRules | None = None
    ) -> None:
        self._inference = inference
        self._control = control
        self._rules = rules or LanguageRules()

    @property
    def limits(self) -> LanguageLimits:
        """Of what a request may hold."""
        return self._rules.content

    def all(self) -> list[ServedModel]:
        """The newest version of each, by name, and behind each its adapters."""
        found = []
        for servable, version, card in self._control.language_models():
            for adapter in ("", *card.adapters):
                name = adapter or servable
                served = ServedModel(
                    name, servable, version, card, self._inference, adapter, self._rules
                )
                found.append(served)
        return found

    def listed(self) -> list[ServedModel]:
        """`all`, once it is complete.  Raises ServableUnavailable."""
        missing = still_loading(self._control)
        if missing is not None:
            raise missing
        return self.all()

    def find(
        self, name: str | None, *, purpose: Purpose = "generate", is_exact: bool = False
    ) -> ServedModel:
        """The model called `name`; unless `is_exact`, with a name of `ANY`, a URL or none the first
        that can do what `purpose` says.  Raises NotFound naming those that exist, or
        ServableUnavailable while there may be more soon.
        """
        models = self.all()
        accepts_any = not is_exact and _is_any(name)
        named = (model for model in models if model.name == name)
        suitable = (model for model in models if accepts_any and model.can(purpose))
        model = next(chain(named, suitable), None)
        if model is not None:
            return model
        missing = still_loading(self._control, name or "")
        if missing is not None:
            raise missing
        names = ", ".join(model.name for model in models) or "none"
        if models and accepts_any:
            raise NotFound(f"No model here is made to {purpose}; there is: {names}")
        raise NotFound(f"The model '{name or 'default'}' does not exist; there is: {names}")


def find_generator(models: LanguageModels, name: str | None) -> ServedModel:
    """The model `name`.  Raises NotFound, or InvalidField if it generates no text."""
    model = models.find(name)
    if not model.card.can_generate:
        text = f"the model {model.name} embeds texts, and generates none"
        raise InvalidField("model", text=text)
    return model


def finish_reason(chunk: Chunk) -> str | None:
    """`finish_reason` of a choice; clients know no others.  Raises ServingError if the model
    failed.
    """
    reason = chunk.finish_reason
    if reason == "error":
        raise chunk.to_error()
    if reason == "abort":
        raise ServingError("the answer was finished by the server")
    return reason
