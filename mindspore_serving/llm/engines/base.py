"""What a worker needs of an engine for language models.

Tokens go in and come out: templates, tokenizing, grammars, stops and text are done before and
behind it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.config import EngineConfig, check_room
from mindspore_serving.llm.engine.adapters import AdapterNames
from mindspore_serving.llm.engine.encoder import Encoder
from mindspore_serving.llm.engine.pinning import Beginning
from mindspore_serving.llm.engine.readout import Readout
from mindspore_serving.llm.engine.request import GenerationRequest, ModelLimits, make_request
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

Outputs: TypeAlias = Sequence[tuple[str, Any]]
"""(request id, output): `Generated`, a vector, `FirstStep`, or the ServingError that ends it."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What an engine is to open.  `eos_ids` are the model's own end tokens."""

    directory: Path
    tokenizer: Tokenizer | None
    eos_ids: tuple[int, ...]


class LanguageEngine(Protocol):
    """One model, ready.  Owned by one thread from the first call on.

    `max_model_len` is how many tokens a prompt and its answer may have together, `embedding_size`
    0 if it cannot embed, `num_blocks` of `block_size` tokens are its cache.  It is a
    `SteppedEngine` or a `TaskEngine`, which `is_stepped` tells apart.
    """

    @property
    def adapters(self) -> AdapterNames:
        """The LoRA adapters that requests may name."""
        ...

    @property
    def readout(self) -> Readout | None:
        """What makes vectors or scores of hidden states; None if that is not known."""
        ...

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of a model that generates nothing."""
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
        """In words: what was chosen, what the cache can hold, how weights are stored (`stored`)."""
        ...

    def add(
        self,
        request_id: str,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        **options: Any,
    ) -> None:
        """Queue a request, which ends with `params.n` finish reasons; `options` are those of
        `make_request`.  Raises InvalidInputs naming what it cannot do, Overloaded if too many
        requests wait.
        """
        ...

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt: its output is float32 [embedding_size].  `options` are what else ours
        has in a `Text`.
        """
        ...

    def pin(self, beginnings: Sequence[Beginning]) -> int:
        """Keep the blocks of prompts in the cache for good; how many they are.  Raises StartError
        if it cannot.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """Free what the request has.  False if there is none."""
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class ForeignEngine(ABC):
    """An engine of another library, which has no vectors, no encoder and no pinned prompts.

    `limits` are what requests may have.
    """

    can_generate = True
    embedding_size = 0
    readout = None
    encoder = None
    adapters = AdapterNames(())

    def __init__(self, config: EngineConfig, limits: ModelLimits) -> None:
        self.config = config
        self.vocab_size, self.max_model_len = limits.vocab_size, limits.max_model_len
        self._limits = limits

    def add(
        self, request_id: str, prompt_ids: Iterable[int], params: SamplingParams, **options: Any
    ) -> None:
        """See `LanguageEngine`."""
        request = make_request(request_id, prompt_ids, params, self._limits, **options)
        self._check(request)
        waiting = self._taken()[self.config.max_num_seqs :]  # those that came last
        held = sum(len(one.prompt_ids) for one in waiting)
        check_room(self.config, "requests", len(waiting), held, len(request.prompt_ids))
        self._start(request)

    @abstractmethod
    def _check(self, request: GenerationRequest) -> None:
        """Raise InvalidInputs for what the library cannot do."""

    @abstractmethod
    def _taken(self) -> list[GenerationRequest]:
        """The requests that the library has, in order; one for each sequence that it counts."""

    @abstractmethod
    def _start(self, request: GenerationRequest) -> None:
        """Give the request to the library.  Raises InvalidInputs if that refuses it."""

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **_: Any) -> NoReturn:
        """Raises InvalidInputs: there are no embeddings."""
        raise InvalidInputs("this engine does not embed")

    def pin(self, beginnings: Sequence[Beginning]) -> NoReturn:
        """Raises StartError: prompts cannot be pinned."""
        raise StartError("pinned_prompts are given, but this engine pins no prompts")


class SteppedEngine(LanguageEngine, Protocol):
    """An engine that is driven step by step.

    `started` are the requests of which the last step was the first; `on_compute` is called with
    those that a step is about to compute.
    """

    is_stepped: Literal[True]
    started: list[str]
    on_compute: Callable[[list[str]], None] | None

    @property
    def has_work(self) -> bool: ...

    def step(self) -> Outputs: ...

    def rest(self) -> float | None:
        """While there is no work: do a little of what can wait.  In how many seconds there is more
        of it; None if there is none.
        """
        ...


class TaskEngine(LanguageEngine, Protocol):
    """An engine that computes by itself, and is used on the thread of an event loop.

    `on_step` is called with the number of sequences of each step that it reports.
    """

    is_stepped: Literal[False]
    on_step: Callable[[int], None] | None

    @property
    def num_open(self) -> int:
        """Requests that are not answered in full."""
        ...

    async def begin(
        self, deliver: Callable[[Outputs], None], fail: Callable[[BaseException], None]
    ) -> None:
        """The event loop runs: outputs go to `deliver`; `fail` gets why no more can come.

        Raises StartError if it cannot begin.
        """
        ...


AnyEngine: TypeAlias = SteppedEngine | TaskEngine
