"""Language models as front ends see them: find one by name, send it a request, iterate the events.

Knows no protocol: each makes an `LLMRequest` of its own request and its own answer of the `Event`s.
"""

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import (
    CODEC,
    METHODS,
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
from mindspore_serving.core.service import Control, Inference, Request
from mindspore_serving.errors import InvalidInputs, NotFound, ServingError
from mindspore_serving.frontends.replies import Replies
from mindspore_serving.metrics import WAITS, Histogram

ANY = frozenset({"", "default", "dummy", "tgi"})  # names that clients send for the only model

Answer = TypeVar("Answer")


class Generation:
    """The events of one `Generate`: await `begin`, then iterate.

    Leaving it before its end needs `cancel`, which frees what the request has; `with` does that.
    `queue` counts the seconds that it waited for its first step.
    """

    def __init__(
        self, inference: Inference, request: Request, queue: Histogram | None = None
    ) -> None:
        self._events: deque[Event] = deque()
        self._queue = queue
        self._replies = Replies(inference, request)

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
            if not isinstance(event, Finished):
                yield event
                continue
            if self._queue is not None:
                self._queue.observe(event.queue_seconds)
            yield event
            return

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
                raise reply.failure
            for body in reply.instances:
                self._events += decode_events(body)
        return self._events.popleft()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that takes requests; `adapter` if the name is that of a LoRA adapter of it.  `queue`
    counts the seconds that generations waited for their first steps."""

    name: str
    servable: str
    version: int
    card: ModelCard
    inference: Inference
    adapter: str = ""
    queue: Histogram | None = None
    limits: LanguageLimits = LanguageLimits()

    def generate(self, request: Generate, timeout: float | None = None) -> Generation:
        """Start a generation.  `timeout` in seconds, None for no limit."""
        return Generation(self.inference, self._wrap(request, timeout), self.queue)

    async def call(
        self, request: LLMRequest, expected: type[Answer], timeout: float | None = None
    ) -> Answer:
        """The one answer to any other request.  Raises RequestRefused, or another ServingError."""
        with Generation(self.inference, self._wrap(request, timeout)) as generation:
            event = await generation.next()
        if isinstance(event, Refused):
            raise RequestRefused(event)
        if not isinstance(event, expected):
            raise ServingError("the model gave no answer")
        return event

    def _wrap(self, request: LLMRequest, timeout: float | None) -> Request:
        method = next(name for name, kind in METHODS.items() if kind is type(request))
        self.limits.check(request)
        try:
            body = encode_request(request)
        except OverflowError:
            raise InvalidInputs("a number is an integer of over 64 bits, expected fewer") from None
        return Request(
            self.servable, method, self.version, CODEC, body, timeout=timeout, is_stream=True
        )


class LanguageModels:
    """All that are served now.  Used on the event loop's thread.

    `queues` counts, by servable and version, the seconds that generations waited for their first
    steps; of those that were answered in full.
    """

    def __init__(
        self, inference: Inference, control: Control, limits: LanguageLimits | None = None
    ) -> None:
        self.limits = limits or LanguageLimits()
        self._inference = inference
        self._control = control
        self.queues: dict[tuple[str, str], Histogram] = {}

    def all(self) -> list[ServedModel]:
        """The newest version of each, by name, and behind each its adapters."""
        found = []
        for servable, version, card in self._control.language_models():
            queue = self._queue(servable, version) if card.can_generate else None
            for adapter in ("", *card.adapters):
                own = (adapter or servable, servable, version, card)
                found.append(ServedModel(*own, self._inference, adapter, queue, self.limits))
        return found

    def find(
        self, name: str | None, *, embeds: bool = False, is_exact: bool = False
    ) -> ServedModel:
        """The model called `name`; unless `is_exact`, with a name of `ANY` or none the first that
        can generate, or embed if `embeds`.  Raises NotFound naming those that exist."""
        models = self.all()
        for model in models:
            if model.name == name:
                return model
        if not is_exact and (name is None or name in ANY):
            for model in models:
                if model.card.can_embed if embeds else model.card.can_generate:
                    return model
        names = ", ".join(model.name for model in models) or "none"
        raise NotFound(f"The model '{name or 'default'}' does not exist; there is: {names}")

    def _queue(self, servable: str, version: int) -> Histogram:
        labels = servable, str(version)
        if labels not in self.queues:
            self.queues[labels] = Histogram(WAITS)
        return self.queues[labels]
