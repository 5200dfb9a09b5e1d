"""Interface of the engines for language models, as a worker uses them.

Tokens go in and come out: templates, tokenizing, grammars, stops and text are done before and
behind the engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.adapters import AdapterNames
from mindspore_serving.llm.engine.cache_budget import CacheBudget
from mindspore_serving.llm.engine.encoder import Encoder
from mindspore_serving.llm.engine.pinning import PinnedPrefix
from mindspore_serving.llm.engine.pooler import Pooler
from mindspore_serving.llm.engine.request import (
    GenerationRequest,
    ModelLimits,
    check_room,
    make_request,
)
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

Outputs: TypeAlias = Sequence[tuple[str, Any]]
"""(request id, output): `Generated`, a vector, `FirstStep`, or the ServingError that ends it."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Model that an engine opens.  `eos_ids` are the model's end tokens."""

    directory: Path
    tokenizer: Tokenizer | None
    eos_ids: tuple[int, ...]


class LanguageEngine(Protocol):
    """An engine with one model, owned by one thread from the first call on.

    `max_model_len` is the maximum number of tokens of a prompt and its answer, `embedding_size` 0
    if it cannot embed; `num_blocks` of `block_size` tokens are its cache.  It is a `SteppedEngine`
    or a `TaskEngine`, which `is_stepped` tells apart.
    """

    @property
    def adapters(self) -> AdapterNames:
        """LoRA adapters that requests may name."""
        ...

    @property
    def pooler(self) -> Pooler | None:
        """Pooler that makes vectors or scores of hidden states; None if that is not known."""
        ...

    @property
    def encoder(self) -> Encoder | None:
        """Encoder of a model that generates nothing."""
        ...

    @property
    def memory(self) -> CacheBudget | None:
        """Memory of the cache; None if the engine does not tell."""
        ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def embedding_size(self) -> int: ...

    @property
    def can_generate(self) -> bool: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    def describe(self, stored: str = "as stored") -> str:
        """Describe the options and the capacity of the cache, for people.

        `stored` says how the checkpoint stores its weights.
        """
        ...

    def add(
        self,
        request_id: str,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        **options: Any,
    ) -> None:
        """Queue a request, which ends with `params.n` finish reasons.

        `options` are those of `make_request`.  Raises InvalidInputs naming what the engine cannot
        do, Overloaded if too many requests wait.
        """
        ...

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt, whose output is float32 [embedding_size].

        `options` are further fields of `PromptText`.
        """
        ...

    def pin(self, prefixes: Sequence[PinnedPrefix]) -> int:
        """Pin the blocks of `prefixes` in the cache, and return their number.

        Raises StartError if the engine cannot.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """Free the resources of a request.  Returns False if there is no such request."""
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class ForeignEngine(ABC):
    """An engine of another library, without vectors, encoder and pinned prompts.

    `limits` are those that requests have to keep.
    """

    can_generate = True
    embedding_size = 0
    pooler = None
    encoder = None
    memory = None
    adapters = AdapterNames(())

    def __init__(self, config: EngineConfig, limits: ModelLimits) -> None:
        self.config = config
        self.vocab_size, self.max_model_len = limits.vocab_size, limits.max_model_len
        self._limits = limits

    def add(
        self, request_id: str, prompt_ids: Iterable[int], params: SamplingParams, **options: Any
    ) -> None:
        """Queue a request, as `LanguageEngine.add` does."""
        request = make_request(request_id, prompt_ids, params, self._limits, **options)
        self._check(request)
        waiting = self._accepted()[self.config.max_num_seqs :]  # those that came last
        num_tokens = sum(len(queued.prompt_ids) for queued in waiting)
        check_room(self.config, "requests", len(waiting), num_tokens, len(request.prompt_ids))
        self._start(request)

    @abstractmethod
    def _check(self, request: GenerationRequest) -> None:
        """Raise InvalidInputs for what the library cannot do."""

    @abstractmethod
    def _accepted(self) -> list[GenerationRequest]:
        """Return the requests that the library has, in order, once per sequence that it counts."""

    @abstractmethod
    def _start(self, request: GenerationRequest) -> None:
        """Pass the request to the library.  Raises InvalidInputs if that refuses it."""

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **_: Any) -> NoReturn:
        """Raise InvalidInputs: there are no embeddings."""
        raise InvalidInputs("this engine does not embed")

    def pin(self, prefixes: Sequence[PinnedPrefix]) -> NoReturn:
        """Raise StartError: prompts cannot be pinned."""
        raise StartError("pinned_prompts is set, but this engine cannot pin prompts; leave it out")


class SteppedEngine(LanguageEngine, Protocol):
    """An engine that is driven step by step.

    `started` are the requests whose first step was the last step; `on_compute` is called before a
    step, with the requests that it computes and the number of its sequences.
    """

    is_stepped: Literal[True]
    started: list[str]
    on_compute: Callable[[list[str], int], None] | None

    @property
    def has_work(self) -> bool: ...

    def step(self) -> Outputs: ...

    def do_idle_work(self) -> float | None:
        """Do a little of what can wait, while there is no work.

        Returns the seconds after which to call again; None if there is nothing more to do.
        """
        ...


class TaskEngine(LanguageEngine, Protocol):
    """An engine that computes by itself, and is used on the thread of an event loop.

    `on_step` is called with the number of sequences of each step that the engine reports.
    """

    is_stepped: Literal[False]
    on_step: Callable[[int], None] | None

    @property
    def num_open(self) -> int:
        """Number of requests that are not answered in full."""
        ...

    async def begin(
        self, deliver: Callable[[Outputs], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Start on the running event loop.

        Outputs go to `deliver`; `fail` is called with the reason why no more can come.  Raises
        StartError if it cannot begin.
        """
        ...


AnyEngine: TypeAlias = SteppedEngine | TaskEngine
