"""Models that take images over ranks and stages: vectors, pieces, positions, refusals."""

from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm import LLM, SamplingParams, loader
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.parallel import exchange, ring
from mindspore_serving.llm.runtimes.stages import micro_batches
from mindspore_serving.llm.step import Features, Row, Step
from tests.llm import listening, seeing
from tests.llm.rank_threads import ranks

pytestmark = pytest.mark.torch
PIPELINE, TENSOR = "pipeline_parallel", "tensor_parallel"
BOTH = {PIPELINE: 2, TENSOR: 2}
CUT = [
    "llava", "smolvlm", "internvl-qwen3", "pixtral", "mistral3-images", "qwen2-vl", "qwen3-vl",
    "qwen3-vl-moe", "qwen3.5", "glm4v", "glm4v-moe", seeing.SEES_WHOLE, "gemma4-images",
]  # fmt: skip
# Cut as smolvlm, qwen2-vl, llava, llava-siglip and qwen3.5 are.
CUT_ALIKE = ["idefics3", "qwen2.5-vl", "llava-next", "llava-onevision", "minicpm-v"]
HEARING = [
    "qwen2-audio", "qwen2.5-omni", "qwen3-asr", "qwen3-omni", "voxtral", "gemma3n-sounds",
]  # fmt: skip
IN_OPENVINO = ["qwen2-vl", "qwen3-vl", "glm4v-moe", seeing.SEES_WHOLE, "gemma4-images"]
SMALL = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 8 << 20}
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
CHAT = ("Is ", seeing.image(1), " as ", seeing.image(2, 90, 30), "?")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Return a kind's directory and reference, each made once."""
    parent, made = tmp_path_factory.mktemp("seeing"), {}

    def build_once(kind):
        if kind not in made:
            path = seeing.build(parent, kind)
            made[kind] = path, seeing.Reference(path, kind)
        return made[kind]

    return build_once


@pytest.fixture
def small_messages(monkeypatch):
    """Ten hidden states fit a message between stages, and an exchange: less than an image."""
    for module in (ring, exchange):
        monkeypatch.setattr(module, "PART_BYTES", 4 * 64 * 10)


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
@pytest.mark.parametrize(
    "kind",
    [
        "smolvlm", "qwen2-vl", "qwen3.5", "glm4v-moe",
        seeing.SEES_WHOLE, seeing.SEES_BY_WINDOW, "gemma4-images",
    ],
)  # fmt: skip
def test_two_stages_answer_as_transformers(build, kind, runtime, small_messages, monkeypatch):
    check(*build(kind), runtime, monkeypatch, **{PIPELINE: 2})


@pytest.mark.parametrize(
    ("runtime", "kind"),
    [
        pytest.param(runtime, kind, marks=[pytest.mark.long] * (kind in CUT_ALIKE))
        for kind in CUT + CUT_ALIKE
        for runtime in ("torch", "openvino")[: 1 + (kind in IN_OPENVINO)]
    ],
)
def test_two_ranks_answer_as_transformers(build, kind, runtime, small_messages, monkeypatch):
    check(*build(kind), runtime, monkeypatch, **{TENSOR: 2})


@pytest.mark.parametrize(
    ("runtime", "kind"),
    [
        ("openvino", "qwen2-vl"),
        ("torch", seeing.SEES_WHOLE),
        *product(("openvino", "torch"), ("gemma4-images", "glm4v-moe")),
    ],
)
def test_stages_of_ranks_answer_as_transformers(build, kind, runtime, small_messages, monkeypatch):
    experts = {"expert_parallel": True} if kind == "glm4v-moe" else {}
    check(*build(kind), runtime, monkeypatch, **BOTH, **experts)


@pytest.mark.parametrize(
    ("runtime", "division"),
    [("openvino", {PIPELINE: 2}), ("torch", {PIPELINE: 2}), ("torch", BOTH)],
)
def test_features_of_layers_are_added_by_the_first_stage(tmp_path, runtime, division, monkeypatch):
    text = {**seeing.TEXTS["qwen3-vl"], "num_hidden_layers": 3}
    monkeypatch.setitem(seeing.TEXTS, "qwen3-vl", text)
    path = seeing.build(tmp_path, "qwen3-vl")
    reference = seeing.Reference(path, "qwen3-vl")
    check(path, reference, runtime, monkeypatch, stage_layers="2:1", **division)


@pytest.mark.parametrize(
    ("kind", "division"),
    [("qwen2.5-omni", {PIPELINE: 2}), *((kind, {TENSOR: 2}) for kind in HEARING)],
)
def test_ranks_and_stages_take_sounds_as_transformers(tmp_path, kind, division, monkeypatch):
    path = listening.build(tmp_path, kind)
    sounds_alone = {"max_images": 0} if kind == "gemma3n-sounds" else {}  # images need timm
    with opened_over(path, "torch", monkeypatch, **division, **sounds_alone) as opened:
        image = [seeing.image(1)] if kind in listening.SEEING else []
        parts = ("Is ", listening.sound(1, 1.013), " of ", *image, "?")
        listening.check(opened, listening.Reference(path, kind), parts, GREEDY)


def check(path, reference, runtime, monkeypatch, **options):
    with opened_over(path, runtime, monkeypatch, **options) as opened:
        seeing.check(opened, reference, CHAT, GREEDY)


@contextmanager
def opened_over(path, runtime, monkeypatch, **options):
    """Open a model with the runner of its first rank."""
    with ranks(path, 1, runtime, **SMALL, **options) as runner:
        monkeypatch.setattr(loader, "open_runners", lambda *_: (runner, None))
        media = {name: options[name] for name in ("max_images",) if name in options}
        opened = loader.open_model(path, runtime, make_config(SMALL | media))
        assert opened.engine.runner is runner
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"), [("qwen3-vl", {TENSOR: 2}), (seeing.SEES_WHOLE, {PIPELINE: 2})]
)
def test_processes_answer_a_chat_with_images_as_transformers(build, kind, options):
    path, reference = build(kind)
    with LLM(path, "openvino", num_threads=2, **options, **SMALL) as llm:
        (answer,) = llm.chat(seeing.chat(*CHAT), GREEDY, use_tqdm=False)
    expected = reference.greedy(answer.prompt_token_ids, [CHAT[1], CHAT[3]], GREEDY.max_tokens)
    assert list(answer.outputs[0].token_ids) == expected


def image_row(*, is_bidirectional):
    """A row of ten tokens with an image at 3 .. 6 and another at 8."""
    positions, vectors = np.array([3, 4, 5, 6, 8]), np.arange(5, dtype=np.float32)[:, None]
    axes = np.arange(30, dtype=np.int32).reshape(10, 3)
    features = Features(positions, vectors, is_bidirectional)
    return Row(range(10), 20, (7,), 1, features=features, rope_positions=axes)


def pieces(row, size):
    """The tokens of each piece, and the vectors and positions of its images."""
    parts = [part.rows[0] for part in micro_batches(Step((row,)), size)]
    features = [part.features for part in parts]
    rows = [([], []) if x is None else (x.vectors[:, 0].tolist(), x.positions) for x in features]
    for part in parts:
        np.testing.assert_array_equal(part.rope_positions, row.rope_positions[list(part.tokens)])
    return [(len(part.tokens), a, list(b)) for part, (a, b) in zip(parts, rows, strict=True)]


def test_images_and_positions_are_cut_with_the_tokens():
    assert pieces(image_row(is_bidirectional=False), 3) == [
        (3, [], []), (3, [0, 1, 2], [0, 1, 2]), (3, [3, 4], [0, 2]), (1, [], []),
    ]  # fmt: skip


def test_a_bidirectional_image_is_not_cut():
    row = image_row(is_bidirectional=True)
    assert pieces(row, 4) == [(7, [0, 1, 2, 3], [3, 4, 5, 6]), (3, [4], [1])]
    assert pieces(row, 7) == [(7, [0, 1, 2, 3], [3, 4, 5, 6]), (3, [4], [1])]
    assert pieces(row, 3)[:2] == [(3, [], []), (4, [0, 1, 2, 3], [0, 1, 2, 3])]


def test_features_of_layers_behind_the_first_stage_are_refused(build):
    problem = "the first 2 layers add features of images .* first stage, which has 1: take fewer"
    with pytest.raises(StartError, match=problem):
        LLM(build("qwen3-vl")[0], "torch", **{PIPELINE: 2})
