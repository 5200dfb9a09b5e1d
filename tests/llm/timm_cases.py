"""Images and sounds of Gemma 3n against transformers, in a process with timm (`with_timm`)."""

import pytest

from mindspore_serving.llm import LLM
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from tests.llm import listening, seeing
from tests.llm.images.test_models import LONG, RUNTIMES, config, small_cache
from tests.llm.sounds.test_models import CHATS, COUNT, FIRST, GREEDY, answers, gemma3n_processor

pytestmark = pytest.mark.torch

WIDE, TALL, SMALL = seeing.image(1, 90, 30), seeing.image(2, 31, 64), seeing.image(3, 7, 5)
SECOND = listening.sound(4, 1.013)  # of the length of the first
PROMPTS = {
    "one image": ("What is ", WIDE, " there?"),
    "several images": (TALL, "Is it as ", SMALL, " or as ", WIDE, TALL, "?"),
    "images and sounds": ("Is ", FIRST, " of ", WIDE, " or ", SECOND, " of ", TALL, "?"),
    "a sound": CHATS["one sound"],
    "a text": CHATS["no sound"],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return listening.build(tmp_path_factory.mktemp("timm"), "gemma3n")


@pytest.fixture(scope="module")
def reference(directory):
    return listening.Reference(directory, "gemma3n")


@pytest.mark.parametrize(
    "runtime", [pytest.param(name, marks=LONG * (name != "openvino")) for name in RUNTIMES]
)
def test_logits_and_tokens_are_those_of_transformers(runtime, directory, reference):
    opened = open_model(directory, runtime, make_config(config(runtime)))
    try:
        for name in ("one image", "several images", "images and sounds"):
            listening.check(opened, reference, PROMPTS[name], GREEDY)
    finally:
        opened.engine.close()


@pytest.mark.parametrize("runtime", ["torch", pytest.param("openvino", marks=LONG)])
def test_prompts_are_cut_batched_and_preempted(runtime, directory, reference):
    # A step has room for a part of an image, and the cache not for all sequences.
    room = {"max_num_batched_tokens": 12, "max_num_seqs": 4, **small_cache("gemma3n", runtime)}
    with LLM(directory, runtime, **{**config(runtime), **room}) as llm:
        outputs = answers(llm, *PROMPTS.values(), count=48)
        assert llm.stats().num_preemptions > 0
    for parts, (ids, tokens) in zip(PROMPTS.values(), outputs, strict=True):
        assert tokens == reference.greedy(ids, listening.media(parts), 48)


def test_prompts_have_the_tokens_of_the_processor(directory):
    _, picture, _, sound = listening.OTHER_TOKENS
    text = f"user:Is {sound} of {picture} or {sound} of {picture}?assistant:"
    processed = gemma3n_processor(directory)(
        text=text, images=[WIDE, TALL], audio=[FIRST / 32768, SECOND / 32768]
    )
    with LLM(directory, "torch", **config("torch")) as llm:
        ((ids, _),) = answers(llm, PROMPTS["images and sounds"])
    assert list(ids) == processed["input_ids"][0]


def test_images_are_taken_without_sounds(directory, reference):
    options = {**config("torch"), "max_audios": 0}
    with LLM(directory, "torch", **options) as llm:
        ((ids, tokens),) = answers(llm, PROMPTS["several images"])
    assert tokens == reference.greedy(ids, [TALL, SMALL, WIDE, TALL], COUNT)
