"""Prompts whose blocks stay in the cache for good: computed once, and then never free."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Protocol

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.step import Runner

SHARE = 0.5  # of the cache that pinned prompts may take


@dataclass(frozen=True, slots=True)
class Beginning:
    """The tokens with which prompts of this salt and adapter begin; `where` names them."""

    where: str
    ids: SequenceOf[int]
    salt: str = ""
    adapter: int = 0


class Pinning(Protocol):
    """What pinning needs of an engine."""

    runner: Runner
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


def pin(engine: Pinning, beginnings: SequenceOf[Beginning]) -> int:
    """Compute the full blocks of `beginnings` while nothing else runs, and keep them; how many
    they are.  Raises StartError: they cannot be computed, or leave too little of the cache.
    """
    if engine.runner.num_slots:
        raise StartError(
            "pinned_prompts are given, but the model has layers with a state, which is not pinned; "
            "leave them out"
        )
    hashes = [_hashes(engine, one) for one in beginnings]
    _check_room(engine, len({digest for own in hashes for digest in own}))
    pinned: set[int] = set()
    for one, own in zip(beginnings, hashes, strict=True):
        if own:
            _compute(engine, one, len(own) * engine.block_size)
        blocks = [block for block in engine.pool.find(own) if block not in pinned]
        engine.pool.share(blocks)
        pinned.update(blocks)
    return len(pinned)


def _hashes(engine: Pinning, one: Beginning) -> list[bytes]:
    length = len(one.ids)
    sequence = Sequence(list(one.ids), length, (0, 0, 0), salt=one.salt, adapter=one.adapter)
    sequence.choose_table(engine.runner.rope_switch)
    return sequence.hash_blocks(length // engine.block_size, engine.block_size)


def _check_room(engine: Pinning, count: int) -> None:
    most = int(engine.num_blocks * SHARE)
    longest = -(-engine.max_model_len // engine.block_size)
    if count > most or count + longest > engine.num_blocks:
        raise StartError(
            f"pinned_prompts take {count} of the cache's {engine.num_blocks} blocks of "
            f"{engine.block_size} tokens; expected at most {most}, and room for max_model_len="
            f"{engine.max_model_len} beside them: raise kv_cache_memory, or lower max_model_len"
        )


def _compute(engine: Pinning, one: Beginning, count: int) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    try:
        engine.add(one.where, one.ids[:count], params, cache_salt=one.salt, adapter=one.adapter)
    except InvalidInputs as error:
        raise StartError(f"{one.where}: {error}") from None
    while engine.has_work:
        for _, generated in engine.step():
            if generated.finish_reason is FinishReason.ERROR:
                raise StartError(f"{one.where} cannot be computed: {generated.stop_reason}")
