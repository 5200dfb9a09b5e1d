"""Models whose layers have a state beside keys and values, through the engine: what is found in the
cache, preempted and read in pieces is answered as transformers does.
"""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, relative_error

pytestmark = pytest.mark.torch
RUNTIMES = {
    "openvino": {"dtype": "f32"},
    "torch": {"device": "cpu"},
    "native": {"kv_cache_dtype": "f32"},
}
ROUNDING = 1e-5  # of the largest logit
CROWDS = (  # model, runtime, draft tokens, and memory in which not all of a crowd have room at once
    ("lfm2", "openvino", 3, 2**18),
    ("qwen3-next", "openvino", 0, 180_000),
    ("qwen3-next", "torch", 0, 180_000),
    ("falcon-h1", "openvino", 0, 450_000),
    ("falcon-h1", "torch", 3, 450_000),
    ("lfm2", "native", 0, 2**18),
    ("falcon-h1", "native", 3, 450_000),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def built(root: Path, name: str) -> Path:
    return root / name if (root / name).exists() else checkpoints.build(name, root)


def config(runtime: str, **options: object) -> EngineConfig:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 2**21}
    return EngineConfig(**{**given, **RUNTIMES[runtime], **options})


def answers(engine: Engine, prompts: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        found[str(index)] = []
        engine.add(str(index), prompt, params)
    while engine.has_work:
        for request_id, generated in engine.step():
            found[request_id] += generated.token_ids
    return [tuple(tokens) for tokens in found.values()]


@pytest.mark.parametrize(("name", "runtime", "drafts", "memory"), CROWDS)
def test_a_crowd_that_shares_beginnings_is_answered_as_by_transformers(
    root: Path, name: str, runtime: str, drafts: int, memory: int
) -> None:
    """Draft tokens that followed the last token before are often rejected, and some accepted."""
    directory = built(root, name)
    given = config(
        runtime, kv_cache_memory=memory, max_model_len=224, max_num_seqs=8,
        num_speculative_tokens=drafts, adaptive_speculation=False, min_ngram=1,
    )  # fmt: skip
    engine = Engine(open_runner(directory, runtime, given), None, given)
    common, *others = checkpoints.prompts(5, longest=80)
    prompts = [*others, *((*common, *other) for other in others)]
    for _ in range(2):
        for prompt, answer in zip(prompts, answers(engine, prompts, 40), strict=True):
            assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING
    assert engine.stats().num_preemptions > 0, engine.stats()
    assert engine.stats().num_cache_hits > 64
    found = engine.stats()
    if drafts:
        assert 0 < found.num_accepted_tokens < found.num_draft_tokens - 40
    engine.close()


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
def test_rejected_draft_tokens_change_no_answer_of_the_delta_rule(root: Path, runtime: str) -> None:
    directory, prompts = built(root, "qwen3-next"), checkpoints.prompts(3)
    given = config(runtime, num_speculative_tokens=3, adaptive_speculation=False, min_ngram=1)
    engine = Engine(open_runner(directory, runtime, given), None, given)
    for prompt, answer in zip(prompts, answers(engine, prompts, 40), strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING
    found = engine.stats()
    assert 0 < found.num_accepted_tokens < found.num_draft_tokens - 40
    engine.close()


def test_a_long_prompt_has_the_same_vector_in_chunks_and_at_once(root: Path) -> None:
    directory, (prompt,) = built(root, "lfm2"), checkpoints.prompts(1, longest=150)
    vectors = []
    for budget in (64, 256):
        given = config("openvino", max_num_batched_tokens=budget)
        engine = Engine(open_runner(directory, "openvino", given), None, given)
        engine.add_embedding("one", prompt)
        found = []
        while engine.has_work:
            found += engine.step()
        vectors.append(found[0][1])
        engine.close()
    assert float(abs(vectors[0] - vectors[1]).max()) < 1e-5


@pytest.mark.parametrize("name", ["qwen3-next", "falcon-h1"])
def test_texts_that_leave_no_state_share_a_step(root: Path, name: str) -> None:
    directory, texts = built(root, name), checkpoints.prompts(3)
    runner = open_runner(directory, "openvino", config("openvino", max_num_batched_tokens=256))
    rows = [Row(text, 0, [2 * i, 2 * i + 1], len(text)) for i, text in enumerate(texts)]
    found = runner.run(Step(tuple(rows)))
    wanted = np.concatenate([checkpoints.logits(directory, text) for text in texts])
    assert relative_error(found, wanted) < 1e-4
    runner.close()


def test_linear_attention_is_float32_on_processors_with_bfloat16() -> None:
    from mindspore_serving.llm.runtimes.openvino.options import options_from, with_f32_states

    rounded = options_from(EngineConfig(), ["BF16"])
    assert rounded.precision == "bf16"
    options = with_f32_states(rounded, EngineConfig())
    assert (options.precision, options.cache_precision) == ("f32", "f16")
    with pytest.raises(StartError, match="dtype is 'bf16', .* would be rounded"):
        with_f32_states(rounded, EngineConfig(dtype="bf16"))


@pytest.mark.parametrize("name", ["lfm2", "qwen3-next", "falcon-h1"])
def test_the_default_precision_of_the_processor_is_near_transformers(root: Path, name: str) -> None:
    directory, (tokens,) = built(root, name), checkpoints.prompts(1)
    runner = open_runner(directory, "openvino", config("openvino", dtype="auto"))
    wanted = checkpoints.logits(directory, tokens)
    assert relative_error(all_logits(runner, tokens), wanted) < 0.05
    runner.close()


def test_memory_for_no_state_is_refused(root: Path) -> None:
    with pytest.raises(StartError, match="hold no states: 3 of 1536 bytes .* kv_cache_memory"):
        open_runner(built(root, "lfm2"), "torch", config("torch", kv_cache_memory=2000))


def test_an_openvino_that_computes_states_otherwise_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore_serving.llm.runtimes.openvino import states_check

    states_check.check_states.cache_clear()
    monkeypatch.setattr(states_check, "_reference_delta_rule", lambda q, k, v, falls, beta: v)
    with pytest.raises(StartError, match="recurrent-state operations, .* are off by"):
        open_runner(built(root, "lfm2"), "openvino", config("openvino"))
