"""Blocks that move from the cache of one engine to that of another, with exact answers."""

import pytest

from mindspore_serving import log
from mindspore_serving.core.prefill_messages import BlocksWritten
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine import handoff
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.handoff import (
    BlocksSent,
    Missing,
    MovingBlocks,
    full_blocks,
    reusable_blocks,
)
from mindspore_serving.llm.storage.block_memory import BlockMemory
from tests.llm.counting import BLOCK, PROMPT, Counting, ask
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation

FULL = len(PROMPT) // BLOCK * BLOCK
PIECES = 4  # of a state, as large as a block
PARAMS = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


def make(num_blocks=64, runner=None, **options):
    config = EngineConfig(
        **{"max_num_seqs": 16, "max_num_batched_tokens": 16, "block_size": BLOCK, **options}
    )
    return Engine(runner or Counting(num_blocks), None, config)


@pytest.fixture
def memory():
    memory = BlockMemory.create(FULL // BLOCK, make().runner.block_bytes)
    yield memory
    memory.close()


@pytest.fixture
def larger():
    """Memory for the blocks of PROMPT and a state."""
    memory = BlockMemory.create(FULL // BLOCK + PIECES, make().runner.block_bytes)
    yield memory
    memory.close()


def stateful():
    return make(runner=ToyRunner(64, BLOCK, num_slots=9))


def computed_elsewhere(engine, memory, num_cached=0, way=BlockMemory):
    """Let `engine` compute PROMPT for another one; return what it says of the blocks."""
    writer = way.open(memory.path, memory.name, engine.runner.block_bytes)
    engine.add("p", PROMPT[:FULL], PARAMS)
    engine.exports.begin("p", full_blocks(engine, PROMPT[:FULL], ""), writer, num_cached)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    while not any(isinstance(output, BlocksSent) for _, output in outputs):
        outputs += engine.exports.advance("p")
    return [output for _, output in outputs if isinstance(output, BlocksWritten)]


def imported(engine, memory, count=FULL // BLOCK, num_pieces=0, num_before=0):
    """Move the first `count` blocks and pieces of PROMPT into the cache of `engine`."""
    digests = reusable_blocks(engine, PROMPT, "")
    moving = MovingBlocks(digests[num_before:], memory, digests[-1], num_pieces)
    engine.imports.arrived(moving, count)
    said = []
    engine.imports.end(moving, "end", lambda _: said.append("end"))
    while engine.imports.has_work:
        engine.step()
    assert said == ["end"]
    return moving


def test_a_prompt_computed_elsewhere_is_a_hit_with_the_same_answer(memory):
    first, second = make(), make()
    events = computed_elsewhere(first, memory)
    assert [event.count for event in events] == [4, 8, 10]  # 16 tokens a step
    imported(second, memory)
    assert ask(second, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [FULL])
    assert set(second.runner.computed) == set(range(FULL, len(PROMPT) + 2))
    assert second.stats().num_handoff_tokens == FULL
    moved = FULL // BLOCK * first.runner.block_bytes
    assert second.stats().num_handoff_bytes_read == moved
    assert first.stats().num_handoff_bytes_written == moved


def test_blocks_that_have_not_arrived_are_computed(memory):
    computed_elsewhere(make(), memory)
    engine = make()
    imported(engine, memory, 3)
    assert ask(engine, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [3 * BLOCK])


def test_cached_blocks_are_sent_at_once_and_counted(memory):
    engine = make()
    ask(engine, [PROMPT])
    events = computed_elsewhere(engine, memory)
    assert [(event.count, event.num_cached) for event in events] == [(10, 10)]


def test_leading_blocks_that_the_other_has_are_not_sent(memory):
    first, second = make(), make()
    ask(second, [PROMPT[: 4 * BLOCK]])
    (*_, last) = computed_elsewhere(first, memory, 4)
    assert last.count == 6
    imported(second, memory, 6, num_before=4)
    assert ask(second, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [FULL])


def test_no_more_blocks_are_imported_than_leave_room_for_sequences(memory):
    computed_elsewhere(make(), memory)
    engine = make(num_blocks=8)  # of which 1 is left free
    imported(engine, memory)
    assert engine.pool.num_free == 8
    assert engine.stats().num_handoff_tokens == 7 * BLOCK


def test_blocks_are_copied_over_several_steps_and_then_the_request_begins(memory, monkeypatch):
    monkeypatch.setattr(handoff, "IMPORT_AHEAD", 3 * make().runner.block_bytes)
    computed_elsewhere(make(), memory)
    engine = make()
    moving = MovingBlocks(reusable_blocks(engine, PROMPT, ""), memory)
    engine.imports.arrived(moving, 10)
    steps = []
    engine.imports.end(moving, "end", lambda _: steps.append("end"))
    while engine.has_work:
        engine.step()
        steps.append(moving.num_imported)
    assert steps == [3, 6, 9, "end", 10]


def test_the_error_of_a_request_that_is_added_late_is_its_output(memory):
    engine = make()

    def add(engine):
        raise InvalidInputs("no")

    engine.imports.end(MovingBlocks([], memory), "r", add)
    ((request_id, error),) = engine.step()
    assert (request_id, str(error)) == ("r", "no")


def test_memory_that_cannot_be_read_is_a_miss(memory, monkeypatch):
    lines = []
    monkeypatch.setattr(log, "warning", lambda text, *args: lines.append(text % args))
    computed_elsewhere(make(), memory)
    engine = make()
    moving = MovingBlocks(reusable_blocks(engine, PROMPT, ""), memory)
    memory.close()
    engine.imports.arrived(moving, 10)
    engine.imports.end(moving, "end", lambda _: [])
    engine.step()
    assert ask(engine, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [0])
    assert "cannot be read" in lines[0]


def test_memory_that_is_too_small_ends_the_export(monkeypatch):
    lines = []
    monkeypatch.setattr(log, "warning", lambda text, *args: lines.append(text % args))
    engine = make()
    small = BlockMemory.create(2, engine.runner.block_bytes)
    writer = BlockMemory.open(small.path, small.name, engine.runner.block_bytes)
    engine.add("p", PROMPT[:FULL], PARAMS)
    engine.exports.begin("p", full_blocks(engine, PROMPT[:FULL], ""), writer)
    ((request_id, error),) = engine.step()
    assert (request_id, str(error)) == (
        "p",
        "blocks cannot be written: [Errno 1] Operation not permitted",
    )
    assert "cannot be written" in lines[0]
    engine.abort("p")
    small.close()


def test_a_state_follows_the_blocks_and_is_where_the_other_engine_begins(larger):
    first, second = stateful(), stateful()
    assert second.imports.missing(reusable_blocks(second, PROMPT, "")) == Missing(0, 0, PIECES)
    (*_, last) = computed_elsewhere(first, larger)
    assert last.count == FULL // BLOCK + PIECES
    imported(second, larger, last.count, PIECES)
    assert second.imports.missing(reusable_blocks(second, PROMPT, "")) == Missing(10, 10, 0)
    assert ask(second, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [FULL])
    states = second.cache.states.pool
    assert states.num_free == states.num_blocks


def test_blocks_without_a_state_are_computed_and_a_state_may_come_alone(larger):
    engine, other = stateful(), stateful()
    computed_elsewhere(other, larger)
    imported(engine, larger, FULL // BLOCK + PIECES - 1, PIECES)
    assert engine.imports.missing(reusable_blocks(engine, PROMPT, "")) == Missing(10, 0, PIECES)
    assert ask(engine, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [0])
    late, memory = stateful(), BlockMemory.create(FULL // BLOCK + PIECES, larger.block_bytes)
    computed_elsewhere(other, memory)
    imported(late, memory)
    state = BlockMemory.create(PIECES, larger.block_bytes)
    (event,) = computed_elsewhere(other, state, 10)
    assert (event.count, event.num_cached) == (PIECES, 10)
    imported(late, state, PIECES, PIECES, num_before=10)
    assert ask(late, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [FULL])


def test_a_narrow_way_gets_the_blocks_and_then_the_state_in_bursts(larger):
    class Narrow(BlockMemory):
        room = 3

    first, second = stateful(), stateful()
    events = computed_elsewhere(first, larger, way=Narrow)
    assert [event.count for event in events] == [3, 6, 9, 12, 14]
    imported(second, larger, FULL // BLOCK + PIECES, PIECES)
    assert ask(second, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [FULL])
    assert all(not users for users in first.pool.users)


def test_an_aborted_request_closes_the_memory(memory):
    engine = make()
    writer = BlockMemory.open(memory.path, memory.name, engine.runner.block_bytes)
    engine.add("p", PROMPT[:FULL], PARAMS)
    engine.exports.begin("p", full_blocks(engine, PROMPT[:FULL], ""), writer)
    engine.step()
    engine.abort("p")
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.read(0)
    assert all(not isinstance(output, BlocksWritten) for _, output in engine.step())


def test_released_blocks_stay_in_the_cache_and_the_request_is_not_added(memory):
    computed_elsewhere(make(), memory)
    engine = make()
    moving = MovingBlocks(reusable_blocks(engine, PROMPT, ""), memory)
    engine.imports.arrived(moving, 10)
    engine.step()
    engine.imports.release(moving)
    assert engine.pool.num_free == 64
    assert not engine.has_work
    assert ask(engine, [PROMPT])[1] == [FULL]


def test_salts_do_not_share_blocks_and_part_of_a_block_is_not_moved():
    engine = make()
    assert len(reusable_blocks(engine, PROMPT, "")) == 10
    assert len(reusable_blocks(engine, PROMPT[:40], "")) == 9  # the last token is computed here
    assert not set(reusable_blocks(engine, PROMPT, "a")) & set(reusable_blocks(engine, PROMPT, ""))


def test_a_prompt_whose_keys_are_rotated_by_another_table_is_not_moved():
    engine = make(runner=ToyRunner(64, BLOCK, rope_switch=41))
    assert reusable_blocks(engine, PROMPT, "") == []  # 42 tokens, and 40 in full blocks
    assert len(reusable_blocks(engine, PROMPT[:41], "")) == 10
