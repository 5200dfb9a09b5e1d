"""Blocks of prompts on disk: an engine finds what another one has computed, and nothing else."""

import pytest

from mindspore_serving import log
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine import stored_blocks
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.stored_blocks import StoredBlocks
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.storage.block_threads import BlockThreads
from mindspore_serving.llm.storage.stores import open_disk, open_levels
from mindspore_serving.stores.file_store import open_directory
from tests.llm.counting import BLOCK, PROMPT, Counting, ask
from tests.llm.driving import sequence
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation
from tests.waiting import PATIENCE, eventually

FULL = len(PROMPT) // BLOCK * BLOCK
MOST = 1 << 20


def make(
    directory,
    most=MOST,
    num_blocks=64,
    model=b"model",
    *,
    threads=BlockThreads,
    patience=PATIENCE,
):
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=16, block_size=BLOCK)
    engine = Engine(Counting(num_blocks), None, config)
    level = open_disk(open_directory(directory), model, engine.runner.block_bytes, most)
    level.patience = patience
    engine.keep_blocks(StoredBlocks(engine.runner, engine.pool, [level], threads))
    return engine


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(stored_blocks, "CLOSING_SECONDS", PATIENCE)


def restarted(engine, directory, **options):
    engine.close()
    return make(directory, **options)


@pytest.fixture
def warnings_logged(monkeypatch):
    found = []
    monkeypatch.setattr(log, "warning", lambda text, *args: found.append(text % args))
    return found


def test_after_a_restart_a_prompt_computes_only_its_last_block(tmp_path):
    first = make(tmp_path)
    said, cached = ask(first, [PROMPT])
    assert cached == [0]
    second = restarted(first, tmp_path)
    assert ask(second, [PROMPT]) == (said, [FULL])
    assert said == [continuation(PROMPT, 3, 128)]
    assert set(second.runner.computed) == set(range(FULL, len(PROMPT) + 2))
    stats = second.stats()
    assert stats.num_disk_hits == FULL
    assert stats.num_disk_bytes_read > FULL * 8
    second.close()


def test_prompts_that_arrive_together_read_shared_blocks_once(tmp_path):
    first = make(tmp_path)
    said, _ = ask(first, [PROMPT])
    second = restarted(first, tmp_path)
    assert ask(second, [PROMPT] * 8 + [[*PROMPT[:22], 99]]) == (
        [*said * 8, continuation([*PROMPT[:22], 99], 3, 128)],
        [FULL] * 8 + [20],
    )
    assert second.stats().num_disk_hits == FULL
    second.close()


def test_a_prompt_reads_from_disk_up_to_the_first_missing_block(tmp_path):
    first = make(tmp_path)
    ask(first, [PROMPT[:22]])
    second = restarted(first, tmp_path)
    assert ask(second, [PROMPT]) == ([continuation(PROMPT, 3, 128)], [20])
    second.close()


@pytest.mark.parametrize(
    ("options", "found"),
    [({"cache_salt": "mine"}, FULL), ({"cache_salt": "yours"}, 0), ({}, 0)],
)
def test_only_the_same_salt_finds_a_prompt(tmp_path, options, found):
    first = make(tmp_path)
    ask(first, [PROMPT], cache_salt="mine")
    second = restarted(first, tmp_path)
    assert ask(second, [PROMPT], **options)[1] == [found]
    second.close()


def test_prompts_of_adapters_are_kept_in_memory_alone(tmp_path):
    engine = make(tmp_path)
    said, _ = ask(engine, [PROMPT], adapter=1)
    assert ask(engine, [PROMPT], adapter=1) == (said, [FULL])
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_another_model_finds_nothing(tmp_path):
    first = make(tmp_path)
    ask(first, [PROMPT])
    second = restarted(first, tmp_path, model=b"other")
    assert ask(second, [PROMPT])[1] == [0]
    second.close()


def test_blocks_that_leave_the_cache_are_found_again(tmp_path):
    engine = make(tmp_path, num_blocks=16)
    said, _ = ask(engine, [PROMPT])
    for start in (50, 60, 70):
        ask(engine, [list(range(start, start + 50))])
    # Ten of the prompt and 36 of the others, but for those that are still in the cache: 12 of the
    # last, which has 14 of the 16, of which two are not full.
    eventually(lambda: len(list(tmp_path.glob("*.block"))) == 10 + 3 * 12 - 12)
    assert ask(engine, [PROMPT]) == (said, [FULL])
    assert engine.stats().num_disk_hits > 0
    engine.close()


def test_while_nothing_is_to_be_computed_blocks_are_written(tmp_path):
    engine = make(tmp_path)
    assert engine.do_idle_work() is None
    ask(engine, [PROMPT])
    eventually(lambda: engine.do_idle_work() is None)
    assert len(list(tmp_path.iterdir())) == 11  # with that of the answer
    other = make(tmp_path)  # at the same time
    assert ask(other, [PROMPT])[1] == [FULL]
    engine.close()
    other.close()


def test_a_damaged_block_is_computed_and_its_file_goes(tmp_path, warnings_logged):
    first = make(tmp_path)
    said, _ = ask(first, [PROMPT])
    first.close()
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    second = make(tmp_path)
    assert ask(second, [PROMPT]) == (said, [0])
    assert "is damaged" in warnings_logged[0]
    eventually(lambda: len(list(tmp_path.iterdir())) == 1)  # that of the answer
    third = restarted(second, tmp_path)
    assert ask(third, [PROMPT]) == (said, [FULL])  # written anew
    third.close()


def test_the_files_of_a_flood_of_prompts_stay_within_the_bound(tmp_path):
    engine = make(tmp_path, most=1000, num_blocks=16)
    for start in range(0, 100, 3):
        ask(engine, [list(range(start, start + 26))])
    engine.close()
    assert 0 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


class Silent(BlockThreads):
    """A disk that never answers."""

    def read(self, digest):
        pass


def test_a_disk_that_does_not_answer_delays_prompts_only_once(tmp_path, warnings_logged):
    first = make(tmp_path)
    said, _ = ask(first, [PROMPT])
    second = restarted(first, tmp_path, threads=Silent, patience=0.02)
    assert ask(second, [PROMPT]) == (said, [0])
    assert ask(second, [[*PROMPT[:8], 1]])[1] == [8]
    assert len(warnings_logged) == 1
    second.close()


def test_other_requests_are_computed_while_a_prompt_waits_for_the_disk(tmp_path):
    first = make(tmp_path)
    ask(first, [PROMPT])
    second = restarted(first, tmp_path, threads=Silent)
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    second.add("waits", PROMPT, params)
    second.add("other", [7, 8, 9], params)
    found = [name for _ in range(3) for name, _ in second.step()]
    assert found == ["other"] * 3
    second.abort("waits")
    while second.has_work:
        second.step()
    second.close()


def test_a_cancelled_prompt_leaves_nothing_in_use(tmp_path):
    first = make(tmp_path)
    said, _ = ask(first, [PROMPT])
    second = restarted(first, tmp_path)
    second.add("0", PROMPT, SamplingParams(max_tokens=3))
    second.abort("0")
    second.step()
    assert ask(second, [PROMPT]) == (said, [FULL])
    assert second.stats().num_free_blocks == second.num_blocks
    second.close()


def with_states(directory, num_slots=17, is_local=True):
    """An engine of a model with states; its steps have 16 tokens, four blocks."""
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=16, block_size=BLOCK)
    engine = Engine(ToyRunner(64, BLOCK, num_slots=num_slots), None, config)
    level = open_disk(open_directory(directory), b"model", engine.runner.block_bytes, MOST)
    level.patience, level.is_local = PATIENCE, is_local
    states = engine.cache.states
    engine.keep_blocks(StoredBlocks(engine.runner, engine.pool, [level], states=states))
    return engine


@pytest.mark.parametrize("is_local", [True, False])
def test_a_prompt_goes_on_from_the_last_state_that_a_level_has(tmp_path, is_local):
    """A shorter prompt that begins alike continues from an earlier state."""
    prompts = [PROMPT, PROMPT, PROMPT[:19], [*PROMPT[:30], 99], [7, *PROMPT]]
    expected = [0, FULL, 16, 28, 0]
    for prompt, num_cached in zip(prompts, expected, strict=True):
        engine = with_states(tmp_path, is_local=is_local)
        assert ask(engine, [prompt]) == ([continuation(prompt, 3, 128)], [num_cached])
        assert engine.stats().num_free_blocks == engine.num_blocks
        states = engine.cache.states.pool
        assert states.num_free == states.num_blocks
        engine.close()


def test_prompts_with_states_that_arrive_together_are_all_answered(tmp_path):
    prompts = [PROMPT, PROMPT[:19], [*PROMPT[:30], 99], [7, *PROMPT], PROMPT[4:]]
    for _ in range(3):
        engine = with_states(tmp_path)
        said, cached = ask(engine, prompts * 3)
        assert said == [continuation(prompt, 3, 128) for prompt in prompts * 3]
        engine.close()
    assert cached[0] == FULL


def test_a_level_that_loses_a_piece_of_a_state_has_an_earlier_state(tmp_path):
    first = with_states(tmp_path)
    said, _ = ask(first, [PROMPT])
    states = first.cache.states.pool.hashes()
    first.close()
    second = with_states(tmp_path)
    level, *_ = second.cache.stored._states
    pieces_of = second.cache.stored._snapshots.pieces
    stored = [digest for digest in states if all(map(level.has, pieces_of(digest)))]
    assert len(stored) == len(states) - 1  # all but that of the answer
    name = level.values.name(pieces_of(blocks_of(PROMPT)[-1])[-1])
    (path,) = tmp_path.rglob(f"{name}*")
    path.unlink()
    answers, (num_cached,) = ask(second, [PROMPT])
    assert answers == said
    assert 0 < num_cached < FULL
    second.close()


def blocks_of(prompt):
    return sequence(prompt, len(prompt)).hash_blocks(len(prompt) // BLOCK, BLOCK)


def test_states_are_read_while_running_sequences_leave_slots(tmp_path):
    first = with_states(tmp_path)
    said, _ = ask(first, [PROMPT])
    first.close()
    second = with_states(tmp_path, num_slots=3)  # one sequence, and one slot more
    assert ask(second, [PROMPT, PROMPT])[0] == said * 2
    second.close()


def test_models_that_cannot_keep_blocks_on_disk_are_refused(tmp_path):
    config = EngineConfig(prefix_cache_dir=str(tmp_path))
    with pytest.raises(StartError, match="runtime 'mindir' has no prefix_cache_dir, expected one"):
        open_runner(tmp_path, "mindir", config)
    stateful = ToyRunner(num_slots=3)
    stateful.state_bytes = 0
    with pytest.raises(StartError, match="recurrent states and none with keys and values"):
        open_levels(tmp_path, "toy", config, stateful)
    with pytest.raises(InvalidInputs, match="needs enable_prefix_caching"):
        EngineConfig(prefix_cache_dir=str(tmp_path), enable_prefix_caching=False)
