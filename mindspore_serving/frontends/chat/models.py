"""Language models as the front ends see them: find one by name, send a request, read its events.

Knows no protocol: each front end translates its request to an `LLMRequest`, and the `Event`s to its
own answer.
"""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias, TypeVar

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import (
    BACKGROUND,
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
from mindspore_serving.core.prefixes import prompt_texts
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Control, Inference, Request, tenant_of_task
from mindspore_serving.core.speech_messages import Speak, Transcribe
from mindspore_serving.errors import (
    InvalidField,
    InvalidInputs,
    NotFound,
    ServingError,
    did_you_mean,
)
from mindspore_serving.frontends import access
from mindspore_serving.frontends.health import still_loading
from mindspore_serving.frontends.replies import MAX_UNREAD, MAX_UNREAD_SOUND, Replies
from mindspore_serving.frontends.request_options import RequestOptions

DEFAULT_MAX_N = 16
TENANT_LENGTH = 16  # characters of a digest, enough to tell tenants apart
# Names that clients send if they mean the only model.
ANY_MODEL = frozenset({"", "default", "dummy", "tgi"})

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Purpose: TypeAlias = Literal["generate", "embed", "score", "rank", "transcribe", "speak"]


class Generation:
    """The events of one `Generate`: await `begin`, then iterate.

    Leaving it early needs `cancel`, which frees the request's resources; `with` does that.
    `limits` and `max_unread` are passed to `Replies`.
    """

    def __init__(
        self,
        inference: Inference,
        request: Request,
        limits: ServerLimits | None = None,
        max_unread: int = MAX_UNREAD,
    ) -> None:
        self._events: deque[Event] = deque()
        self._replies = Replies(inference, request, limits, max_unread)

    async def begin(self) -> Started:
        """Return the first event.

        Raises RequestRefused, or another ServingError.
        """
        event = await self.next()
        if isinstance(event, Refused):
            raise RequestRefused(event)
        if not isinstance(event, Started):
            raise ServingError("the model returned no answer")
        return event

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events after the first; `Finished` is the last.

        Raises ServingError if the model's worker is lost.
        """
        while True:
            event = await self.next()
            if event is None:
                raise ServingError("the answer ended early")
            if isinstance(event, Finished):
                access.note_tokens(event.num_prompt_tokens, event.num_generated_tokens)
            yield event
            if isinstance(event, Finished):
                return

    async def stream_bytes(
        self, first: bytes, write: Callable[[Event], bytes], fail: Callable[[Exception], bytes]
    ) -> AsyncIterator[bytes]:
        """Iterate over the bytes of an answer that has begun, as `stream_bytes` does."""
        async for data in stream_bytes(self, first, write, fail):
            yield data

    @property
    def version(self) -> int:
        """Version that a traffic rule has chosen, once the answer has begun; else 0."""
        return self._replies.version

    def cancel(self) -> None:
        """Cancel the request; has no effect after its end."""
        self._replies.cancel()

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    async def next(self) -> Event | None:
        """Return the next event, None after the last.

        Raises ServingError if the model's worker is lost.
        """
        while not self._events:
            reply = await self._replies.next()
            if reply is None:
                return None
            if reply.failure is not None:
                reply.raise_failure()
            for body in reply.instances:
                self._events += decode_events(body)
        return self._events.popleft()


async def stream_bytes(
    events: AsyncIterable[Item],
    first: bytes,
    write: Callable[[Item], bytes],
    fail: Callable[[Exception], bytes],
) -> AsyncIterator[bytes]:
    """Iterate over the bytes of an answer.

    They are `first`, then the result of `write` for each event, and after an error that of `fail`.
    """
    if first:
        yield first
    try:
        async for event in events:
            data = write(event)
            if data:
                yield data
    except Exception as error:
        yield fail(error)


@dataclass(frozen=True, slots=True)
class LanguageRules:
    """Limits and permissions of requests to language models.

    `max_n` is the largest number of answers to a prompt.  Requests may set a priority only with
    `allows_priority`, and a chat template only with `allows_templates`.  `limits` has the timeouts,
    `content` the limits of a request's size.
    """

    max_n: int = DEFAULT_MAX_N
    allows_priority: bool = False
    limits: ServerLimits = ServerLimits()
    content: LanguageLimits = LanguageLimits()
    allows_templates: bool = False

    def check(self, request: Generate) -> None:
        """Check a request.

        Raises RequestRefused.
        """
        if request.params.n > self.max_n:
            text = f"n is {request.params.n}, expected at most {self.max_n} (--max-n)"
            raise RequestRefused(Refused("input", text, field="n"))
        if request.priority and not self.allows_priority:
            text = f"priority is {request.priority}, expected 0 as --allow-priority is not set"
            raise RequestRefused(Refused("input", text, field="priority"))
        if request.chat_template and not self.allows_templates:
            text = (
                "chat_template is set, expected none: the server runs without --allow-chat-template"
            )
            raise RequestRefused(Refused("input", text, field="chat_template"))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that takes requests; `adapter` is set if the name is that of a LoRA adapter."""

    name: str
    servable: str
    version: int
    card: ModelCard
    inference: Inference
    adapter: str = ""
    requested: int = 0  # version that the client names; 0 if it names none
    rules: LanguageRules = LanguageRules()

    def can(self, purpose: Purpose) -> bool:
        """Return whether the model serves `purpose`.

        An adapter only generates; a classifier with a single label can rank.
        """
        card = self.card
        if purpose == "generate":
            return card.can_generate
        if purpose == "transcribe":
            return card.can_transcribe
        if purpose == "speak":
            return card.can_speak
        can_read = card.can_embed if purpose == "embed" else card.can_score
        return can_read and not self.adapter and (purpose != "rank" or len(card.labels) == 1)

    def generate(self, request: Generate, options: RequestOptions) -> Generation:
        """Start a generation.

        Raises RequestRefused for what clients may not request.
        """
        self.rules.check(request)
        if options.priority:
            is_background = options.priority >= BACKGROUND
            requested = 0 if is_background else request.priority
            request = msgspec.structs.replace(request, priority=requested + options.priority)
        if tenant := tenant_of_task.get():
            request = msgspec.structs.replace(request, tenant=tenant[:TENANT_LENGTH])
        limits = self.rules.limits if request.is_stream else None
        return Generation(self.inference, self._wrap(request, options), limits)

    def transcribe(
        self, request: Transcribe, options: RequestOptions, *, is_stream: bool = False
    ) -> Generation:
        """Start the text of a recording, whose events `next` returns."""
        limits = self.rules.limits if is_stream else None
        return Generation(self.inference, self._wrap(request, options), limits)

    def speak(self, request: Speak, options: RequestOptions) -> Generation:
        """Start the sound of a text, whose events `next` returns."""
        wrapped = self._wrap(request, options)
        return Generation(self.inference, wrapped, self.rules.limits, MAX_UNREAD_SOUND)

    async def call(
        self, request: LLMRequest, expected: type[Answer], options: RequestOptions
    ) -> Answer:
        """Return the only answer to a request other than `Generate`.

        Raises RequestRefused, or another ServingError.
        """
        with Generation(self.inference, self._wrap(request, options)) as generation:
            event = await generation.next()
        if isinstance(event, Refused):
            raise RequestRefused(event)
        if not isinstance(event, expected):
            raise ServingError("the model returned no answer")
        return event

    def _wrap(self, request: LLMRequest, options: RequestOptions) -> Request:
        """Encode the request for the dispatcher, with its timeout and its prefix."""
        max_timeout = self.rules.limits.request_timeout
        timeout = min(options.timeout or max_timeout, max_timeout)
        method = next(name for name, kind in METHODS.items() if kind is type(request))
        self.rules.content.check(request)
        try:
            body = encode_request(request)
        except OverflowError:
            raise InvalidInputs("a number does not fit into 64 bits") from None
        version = self.version if self.adapter else self.requested
        wrapped = Request(
            self.servable, method, version, CODEC, body, timeout=timeout, is_stream=True
        )
        wrapped.is_background = options.priority >= BACKGROUND
        if isinstance(request, Generate):
            wrapped.prefix = prompt_texts(request)
        return wrapped


def _is_any(name: str | None) -> bool:
    """Return whether a client means the only model.

    Some clients send the URL of their endpoint as the model's name.
    """
    return name is None or name in ANY_MODEL or name.startswith(("http://", "https://"))


class LanguageModels:
    """The language models that are served now; used on the event loop's thread."""

    def __init__(
        self, inference: Inference, control: Control, rules: LanguageRules | None = None
    ) -> None:
        self._inference = inference
        self._control = control
        self._rules = rules or LanguageRules()

    @property
    def limits(self) -> LanguageLimits:
        """Limits of a request's size."""
        return self._rules.content

    @property
    def server_limits(self) -> ServerLimits:
        """Limits of all requests of the server."""
        return self._rules.limits

    def all(self) -> list[ServedModel]:
        """Return the newest version of each model, by name, each followed by its adapters."""
        models = []
        for servable, version, card in self._control.language_models():
            for adapter in ("", *card.adapters):
                name = adapter or servable
                served = ServedModel(
                    name, servable, version, card, self._inference, adapter, rules=self._rules
                )
                models.append(served)
        return models

    def listed(self) -> list[ServedModel]:
        """Return `all`, unless a model is still loading.

        Raises ServableUnavailable.
        """
        missing = still_loading(self._control)
        if missing is not None:
            raise missing
        return self.all()

    def find(
        self, name: str | None, *, purpose: Purpose = "generate", is_exact: bool = False
    ) -> ServedModel:
        """Return the model called `name`.

        Unless `is_exact`, no name, a URL or one of `ANY_MODEL` selects the first model that serves
        `purpose`.  Raises NotFound naming the models that exist, or ServableUnavailable while one
        is still loading.  Qwen/Qwen3-0.6B, as the model is called where it comes from, also selects
        Qwen3-0.6B.
        """
        models = self.all()
        accepts_any = not is_exact and _is_any(name)
        names = (name, None if is_exact or not name else name.rpartition("/")[2])
        named = (model for model in models if model.name in names)
        suitable = (model for model in models if accepts_any and model.can(purpose))
        model = next(chain(named, suitable), None)
        if model is not None:
            return model
        missing = still_loading(self._control, name or "")
        if missing is not None:
            raise missing
        available = ", ".join(sorted(model.name for model in models)) or "none"
        if models and accepts_any:
            raise NotFound(f"No model here can {purpose}; available: {available}")
        if name and any(state.name == name for state in self._control.readiness()):
            text = f"'{name}' is not a language model; call it at /model/{name}:METHOD"
            raise NotFound(f"{text} or /v2/models/{name}/infer")
        near = did_you_mean(name or "", (model.name for model in models))
        known = f"available: {available}{near}"
        raise NotFound(f"The model '{name or 'default'}' does not exist; {known}")


def find_generator(models: LanguageModels, name: str | None) -> ServedModel:
    """Return the model `name`.

    Raises NotFound, or InvalidField if it generates no text.
    """
    model = models.find(name)
    if not model.card.can_generate:
        kinds = {
            "transcribes speech": model.card.can_transcribe,
            "synthesizes speech": model.card.can_speak,
        }
        reads = next((does for does, can in kinds.items() if can), "embeds texts")
        text = f"model {model.name!r} {reads} and cannot generate"
        raise InvalidField("model", text=text)
    return model


def finish_reason(chunk: Chunk) -> str | None:
    """Return the `finish_reason` of a choice, one that OpenAI's clients know.

    Raises ServingError if the model failed.
    """
    reason = chunk.finish_reason
    if reason == "error":
        raise chunk.to_error()
    if reason == "abort":
        raise ServingError("the server ended the answer")
    return reason
