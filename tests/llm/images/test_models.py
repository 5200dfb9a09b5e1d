"""Models that take images compute what transformers computes, however their prompts are cut."""

from dataclasses import replace

import pytest
from safetensors.numpy import load_file, save_file

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.processing.processor import Processor
from tests.llm import seeing

pytestmark = pytest.mark.torch

RUNTIMES = ("openvino", "torch", "native")
LONG = (pytest.mark.long,)
BIDIRECTIONAL = ("openvino", "torch")
COUNT = 16  # tokens of an answer
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
ONE, TWO = seeing.image(1), seeing.image(2, 90, 30)
CHATS = {
    "one image": ("What is ", ONE, " there?"),
    "two images": (ONE, "Is it as ", TWO, "?"),
    "the same twice": ("Are ", TWO, TWO, " the same?"),
    "no image": ("What is there?",),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    place = tmp_path_factory.mktemp("seeing")
    return {kind: seeing.build(place, kind) for kind in seeing.KINDS}


@pytest.fixture(scope="module")
def references(directories):
    return {kind: seeing.Reference(path, kind) for kind, path in directories.items()}


def config(runtime, **options):
    memory = {"openvino": 8 << 20}.get(runtime, 4 << 20)
    return {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": memory, **options}


def images(chat):
    return [one for one in chat if not isinstance(one, str)]


def ask(llm, *chats, count=COUNT):
    params = replace(GREEDY, max_tokens=count)
    found = llm.chat([seeing.chat(*chat) for chat in chats], params, use_tqdm=False)
    return [(one.prompt_token_ids, list(one.outputs[0].token_ids)) for one in found]


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        pytest.param(kind, runtime, marks=LONG * (runtime == "native" and kind != "llava"))
        for kind in seeing.KINDS
        for runtime in RUNTIMES
        if kind not in seeing.BIDIRECTIONAL or runtime in BIDIRECTIONAL
    ],
)
def test_logits_and_tokens_are_those_of_transformers(kind, runtime, directories, references):
    opened = open_model(directories[kind], runtime, make_config(config(runtime)))
    try:
        for chat in (CHATS["two images"], CHATS["one image"]):
            seeing.check(opened, references[kind], chat, GREEDY)
    finally:
        opened.engine.close()


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        *(("smolvlm", runtime) for runtime in RUNTIMES),
        *(("qwen3-vl", runtime) for runtime in RUNTIMES),
        ("llava-onevision", "openvino"),
        ("mistral3-images", "torch"),
        *(("gemma4-images", runtime) for runtime in RUNTIMES),
        *((seeing.SEES_BY_WINDOW, runtime) for runtime in BIDIRECTIONAL),
    ],
)
def test_prompts_with_and_without_images_are_cut_batched_and_preempted(
    kind, runtime, directories, references
):
    path, reference = directories[kind], references[kind]
    # A step has room for a part of an image, and the cache not for all sequences.
    room = {"max_num_batched_tokens": 24, "max_num_seqs": 4, **small_cache(kind, runtime)}
    with LLM(path, runtime, **{**config(runtime), **room}) as llm:
        found = ask(llm, *CHATS.values(), count=64)
        assert llm.stats().num_preemptions > 0
    for chat, (ids, tokens) in zip(CHATS.values(), found, strict=True):
        assert tokens == reference.greedy(ids, images(chat), 64)


def small_cache(kind, runtime):
    size = 2 * 2 * 2 * 16 * 4 * block(runtime)  # layers, keys and values, heads, features, bytes
    if kind.startswith("gemma4"):
        size = size * 3 // 2  # half of the layers have as large heads again
    blocks = {"openvino": 8}.get(runtime, 30)
    return {"kv_cache_memory": size * blocks, "block_size": block(runtime)}


@pytest.mark.parametrize("kind", ["llava", "qwen2-vl"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_blocks_are_shared_by_prompts_with_the_same_images_alone(
    runtime, kind, directories, references
):
    first, second = (("Look at ", seeing.image(i, 64, 64), " and say") for i in (1, 2))
    with LLM(directories[kind], runtime, **config(runtime), block_size=block(runtime)) as llm:
        before = ask(llm, first)
        hits = llm.stats().num_cache_hits
        other = ask(llm, second)  # the same tokens
        assert (hits, before[0][0]) == (0, other[0][0])
        assert llm.stats().num_cache_hits < before[0][0].index(seeing.IMAGE)
        assert ask(llm, first, second) == [*before, *other]
        assert llm.stats().num_cache_hits >= hits + 2 * block(runtime)
    for chat, (ids, tokens) in zip((first, second), (*before, *other), strict=True):
        assert tokens == references[kind].greedy(ids, images(chat), COUNT)


@pytest.mark.parametrize("runtime", BIDIRECTIONAL)
def test_a_bidirectional_image_is_computed_in_a_single_step(runtime, directories, references):
    """In steps with room for less than an image; in a later turn; and from a block of the cache on
    that ends within an image."""
    earlier = seeing.chat("Hello") + [{"role": "assistant", "content": "Hi"}]
    asked = [*map(seeing.chat, ("What is it?",)), earlier + seeing.chat(ONE, " or ", TWO, "?")]
    first, second = ("Look at this", ONE, "and say"), ("Look at this", ONE, "or sing")
    options = {"block_size": block(runtime), "max_num_batched_tokens": 12, "max_num_seqs": 3}
    params = replace(GREEDY, max_tokens=8)
    with LLM(directories[seeing.SEES_WHOLE], runtime, **config(runtime), **options) as llm:
        found = llm.chat([*asked, seeing.chat(*first)], params, use_tqdm=False)
        hits = llm.stats().num_cache_hits
        found += llm.chat(seeing.chat(*second), params, use_tqdm=False)
        assert llm.stats().num_cache_hits == hits + 32
    assert set(found[-1].prompt_token_ids[31:33]) == {seeing.IMAGE}
    for answer, images in zip(found, ([], [ONE, TWO], [ONE], [ONE]), strict=True):
        expected = references[seeing.SEES_WHOLE].greedy(answer.prompt_token_ids, images, 8)
        assert list(answer.outputs[0].token_ids) == expected


OLD_NAMES = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}


OLDER = ["llava-next", "llava-onevision", "internvl", "mistral3-images"]


@pytest.mark.parametrize("kind", OLDER)
def test_tensors_are_read_by_their_older_names(kind, directories, references, tmp_path):
    """As transformers 4 saved them: the text model with its head, the tower at the top."""
    for file in directories[kind].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors").unlink()
    tensors = {}
    for name, tensor in load_file(directories[kind] / "model.safetensors").items():
        begin = next((begin for begin in OLD_NAMES if name.startswith(begin)), "model.")
        tensors[OLD_NAMES.get(begin, "") + name.removeprefix(begin)] = tensor
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert not any(name.startswith("model.") for name in tensors)
    with LLM(tmp_path, "torch", **config("torch")) as llm:
        for ids, tokens in ask(llm, CHATS["one image"]):
            assert tokens == references[kind].greedy(ids, [ONE], COUNT)


def block(runtime):
    return {"openvino": 32}.get(runtime, 8)


def test_bidirectional_images_are_refused_by_native(directories):
    pytest.importorskip("llvmlite")
    options = make_config(config("native"))
    with pytest.raises(StartError, match="see one another, .* max_images=0 to serve texts only"):
        open_model(directories[seeing.SEES_WHOLE], "native", options)


def test_an_image_is_computed_once(directories):
    opened = open_model(directories["llava"], "torch", make_config(config("torch")))
    try:
        processor = Processor(
            opened.tokenizer, opened.chat_template, opened.card(),
            images=opened.images, tower=opened.tower,
        )  # fmt: skip
        for chat in CHATS.values():
            processor.prepare(Generate(messages=seeing.chat(*chat)))
        assert opened.tower.num_computed == 2
    finally:
        opened.engine.close()


@pytest.mark.parametrize("runtime", ["mindspore", "mindir", "toy"])
def test_a_runtime_that_takes_no_images_is_refused_by_name(runtime, directories):
    text = f"'{runtime}' takes no images, expected one of openvino, torch, native; max_images=0"
    with pytest.raises(StartError, match=f"{text} serves it for texts only"):
        open_model(directories["llava"], runtime, make_config({}))


def test_without_an_image_processor_only_texts_are_served(directories, tmp_path):
    for file in directories["llava"].iterdir():
        if file.name != "preprocessor_config.json":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(StartError, match=r"no preprocessor_config.json.*max_images=0"):
        LLM(tmp_path, "torch", **config("torch"))
    with LLM(tmp_path, "torch", **config("torch", max_images=0)) as llm:
        assert len(ask(llm, CHATS["no image"])[0][1]) == COUNT


def test_weights_of_the_tower_that_are_missing_are_named(directories, tmp_path):
    for file in directories["smolvlm"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.connector.modality_projection.proj.weight"]
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartError, match="modality_projection.proj.weight"):
        LLM(tmp_path, "torch", **config("torch"))
