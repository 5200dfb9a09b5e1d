"""Draft models on real runtimes: draft tokens change no answer; unsuitable models are refused."""

import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from tests.llm import checkpoints, tokenizers_trained

EXACT = {"dtype": "f32", "kv_cache_dtype": "f32", "block_size": 32, "max_model_len": 192}
NUM_NEW = 24
RUNTIMES = ["openvino", "native", pytest.param("torch", marks=pytest.mark.torch)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model, its first layer alone, and one that knows nothing of it."""
    directory = tmp_path_factory.mktemp("models")
    large = checkpoints.build("llama", directory)
    first = shutil.copytree(large, directory / "first layer")
    config = json.loads((large / "config.json").read_text())
    (first / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    file = first / "model.safetensors"
    tensors = load_file(file)
    save_file(
        {
            name: one
            for name, one in tensors.items()
            if ".layers." not in name or ".layers.0." in name
        },
        file,
    )
    return {"itself": large, "first layer": first, "other": checkpoints.build("qwen2", directory)}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("draft", ["itself", "first layer", "other"])
def test_answers_match_the_model_for_any_draft_tokens(models, runtime, draft):
    prompts = checkpoints.prompts(4, seed=5, longest=80)
    options = {
        "draft": models[draft],
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "num_speculative_tokens": 3,
        "adaptive_speculation": False,
        "min_ngram": 32,
        "kv_cache_memory": 4 << 20,
    }
    params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True, n=2)
    with LLM(models["itself"], runtime, **EXACT, **options) as llm:
        answers = llm.generate([list(one) for one in prompts], params)
        stats = llm.stats()
    for prompt, answer in zip(prompts, answers, strict=True):
        for output in answer.outputs:
            assert checkpoints.shortfall(models["itself"], prompt, output.token_ids) < 1e-4
    right = stats.num_accepted_tokens / stats.num_draft_tokens
    least, most = {"itself": (0.95, 1), "first layer": (0, 0.9), "other": (0, 0.5)}[draft]
    assert least <= right <= most


def test_caches_of_model_and_draft_hold_equal_tokens(models):
    """Which together take the memory that is given."""
    own = {**EXACT, "kv_cache_memory": 1 << 20}
    blocks = []
    for draft in (None, models["itself"], models["first layer"]):
        with LLM(models["itself"], **own, draft=draft) as llm:
            blocks.append(llm.stats().num_blocks)
    alone, halved, shared = blocks
    assert halved == alone // 2
    assert abs(shared - alone * 3 / 4) <= 1, "3 layers beside 1"


def test_by_default_the_cache_of_a_draft_holds_the_tokens_of_the_model(models):
    with LLM(models["itself"], **EXACT, draft=models["first layer"]) as llm:
        engine = llm._any_engine()
        draft = engine._speculation._model.runner
        assert draft.num_blocks == engine.num_blocks
        assert draft.cache_memory.block_bytes == engine.runner.cache_memory.block_bytes // 3


def with_tokenizer(source, target, tokenizer):
    directory = shutil.copytree(source, target)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def test_a_draft_with_another_tokenizer_is_refused(models, tmp_path):
    own = tokenizers_trained.byte_level()
    large = with_tokenizer(models["itself"], tmp_path / "large", own)
    own.add_tokens(["<new>"])
    draft = with_tokenizer(models["itself"], tmp_path / "small", own)
    with pytest.raises(StartError, match=r"another tokenizer: 1 tokens differ, as '<new>' \(model"):
        LLM(large, draft=draft, **EXACT)


def test_draft_without_tokenizer_needs_equal_vocabulary_size(models, tmp_path):
    small = shutil.copytree(models["itself"], tmp_path / "small")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 77}))
    with pytest.raises(StartError, match="has 77 tokens and the model"):
        LLM(models["itself"], draft=small, **EXACT)


def test_model_with_recurrent_state_refuses_a_draft(models, tmp_path):
    keeping = checkpoints.build("lfm2", tmp_path)
    for large, small in ((keeping, models["itself"]), (models["itself"], keeping)):
        with pytest.raises(StartError, match="layers with a state"):
            LLM(large, draft=small, **EXACT)


def test_draft_path_without_a_model_is_refused_by_name(models, tmp_path):
    with pytest.raises(StartError, match="draft is .*nowhere', expected a model's directory"):
        LLM(models["itself"], draft=tmp_path / "nowhere", **EXACT)
    broken = shutil.copytree(models["itself"], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")
    with pytest.raises(StartError, match="draft .*broken"):
        LLM(models["itself"], draft=broken, **EXACT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens=0"),
        ({"tensor_parallel": 2}, "ranks"),
        ({"pipeline_parallel": 2}, "ranks"),
    ],
)
def test_options_incompatible_with_a_draft_are_refused(models, options, message):
    with pytest.raises(InvalidInputs, match=message):
        LLM(models["itself"], draft=models["itself"], **options)
    with pytest.raises(InvalidInputs, match="draft is 3"):
        LLM(models["itself"], draft=3)
