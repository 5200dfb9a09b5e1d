"""Pinned prompts: their blocks are computed once and then never evicted."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Protocol

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.engine.adapters import EngineAdapters
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.step import Runner

MAX_SHARE = 0.5  # of the cache that pinned prompts may take


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """Tokens with which prompts of this salt and adapter begin; `name` is for errors."""

    name: str
    ids: SequenceOf[int]
    salt: str = ""
    adapter: int = 0


class PinningEngine(Protocol):
    """Parts of an engine that pinning needs."""

    runner: Runner
    adapters: EngineAdapters
    pool: BlockPool
    num_blocks: int
    block_size: int
    max_model_len: int

    @property
    def has_work(self) -> bool: ...

    def add(
        self, request_id: str, prompt_ids: Iterable[int], params: SamplingParams, **options: Any
    ) -> None: ...

    def step(self) -> SequenceOf[tuple[str, Any]]: ...


def pin(engine: PinningEngine, prefixes: SequenceOf[PinnedPrefix]) -> int:
    """Compute the full blocks of `prefixes` while nothing else runs; pin and count them.

    Raises StartError if they cannot be computed, or leave too little of the cache.
    """
    if engine.runner.num_slots:
        raise StartError(
            "pinned_prompts is set, but the model has layers with a state, which cannot be pinned; "
            "leave it out"
        )
    hashes = [_hashes(engine, prefix) for prefix in prefixes]
    _check_room(engine, len({digest for digests in hashes for digest in digests}))
    pinned: set[int] = set()
    for prefix, digests in zip(prefixes, hashes, strict=True):
        if digests:
            _compute(engine, prefix, len(digests) * engine.block_size)
        blocks = [block for block in engine.pool.find(digests) if block not in pinned]
        engine.pool.share(blocks)
        pinned.update(blocks)
    return len(pinned)


def _hashes(engine: PinningEngine, prefix: PinnedPrefix) -> list[bytes]:
    length = len(prefix.ids)
    sequence = Sequence(
        list(prefix.ids), length, (0, 0, 0), salt=prefix.salt, adapter=prefix.adapter,
        adapter_digest=engine.adapters.digests.get(prefix.adapter, b""),
    )  # fmt: skip
    sequence.select_rope(engine.runner.rope_switch)
    return sequence.hash_blocks(length // engine.block_size, engine.block_size)


def _check_room(engine: PinningEngine, count: int) -> None:
    limit = int(engine.num_blocks * MAX_SHARE)
    longest = -(-engine.max_model_len // engine.block_size)
    if count > limit or count + longest > engine.num_blocks:
        raise StartError(
            f"pinned_prompts take {count} of the cache's {engine.num_blocks} blocks of "
            f"{engine.block_size} tokens; expected at most {limit}, and room for max_model_len="
            f"{engine.max_model_len} beside them: raise kv_cache_memory, or lower max_model_len"
        )


def _compute(engine: PinningEngine, prefix: PinnedPrefix, count: int) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    try:
        engine.add(
            prefix.name, prefix.ids[:count], params, cache_salt=prefix.salt, adapter=prefix.adapter
        )
    except InvalidInputs as error:
        raise StartError(f"{prefix.name}: {error}") from None
    while engine.has_work:
        for _, generated in engine.step():
            if generated.finish_reason is FinishReason.ERROR:
                raise StartError(f"{prefix.name} cannot be computed: {generated.stop_reason}")
