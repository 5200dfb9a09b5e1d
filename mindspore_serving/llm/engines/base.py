"""What a worker needs of an engine for language models.

Tokens go in and come out: templates, tokenizing, grammars, stops and text are done before and
behind it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

Outputs: TypeAlias = Sequence[tuple[str, Any]]
"""(request id, output): `Generated`, a vector, `FirstStep`, or the ServingError that ends it."""


@dataclass(frozen=True, slots=True)
class Model:
    """What an engine is to open.  `eos_ids` are the model's own end tokens."""

    directory: Path
    tokenizer: Tokenizer | None
    eos_ids: tuple[int, ...]


class LanguageEngine(Protocol):
    """One model, ready.  Owned by one thread from the first call on.

    `max_model_len` is how many tokens a prompt and its answer may have together, `embedding_size`
    0 if it cannot embed, `num_blocks` of `block_size` tokens are its cache.
    """

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

    def describe(self) -> str:
        """In words: what was chosen, and what the cache can hold."""
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
        requests wait."""
        ...

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt: its output is float32 [embedding_size].  `options` are what else ours
        has in a `Text`."""
        ...

    def abort(self, request_id: str) -> bool:
        """Free what the request has.  False if there is none."""
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class TaskEngine(LanguageEngine, Protocol):
    """An engine that computes by itself, and is used on the thread of an event loop.

    `on_step` is called with the number of sequences of each step that it reports.
    """

    on_step: Callable[[int], None] | None

    @property
    def num_open(self) -> int:
        """Requests that are not answered in full."""
        ...

    async def begin(
        self, deliver: Callable[[Outputs], None], fail: Callable[[BaseException], None]
    ) -> None:
        """The event loop runs: outputs go to `deliver`; `fail` gets why no more can come.

        Raises StartError if it cannot begin."""
        ...
