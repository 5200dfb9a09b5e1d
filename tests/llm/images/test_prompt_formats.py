"""The text of an image is that of transformers' processors, whatever the image's size."""

import importlib
import json
import random
import subprocess
import sys

import numpy as np
import pytest

from mindspore_serving.core.llm_messages import Generate, RequestRefused
from mindspore_serving.errors import InvalidField, StartError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.messages import find_media
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.reader import open_reader
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.frontends.openai.serving import CARD
from tests.llm import seeing
from tests.waiting import PATIENCE

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

# Width and height: square, odd, thin both ways, smaller than a patch.
SIZES = [(32, 32), (50, 40), (31, 97), (120, 3), (5, 160), (129, 65), (7, 6), (1, 1)]
PATCHES = {"patch_size": 8, "image_token": "<image>"}
PIXTRAL = {**PATCHES, "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
MINICPM = {
    "slice_mode": True, "image_token": "<|image_pad|>", "image_start_token": "<image>",
    "image_end_token": "</image>", "slice_start_token": "<slice>", "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>",
}  # fmt: skip
WRITING = {"minicpm-v": {"image_token_divisor": 16}}
# Kind -> its processor, and the attributes that it has from processor_config.json and tokenizer.
PROCESSORS = {
    "llava-next": ("llava_next.LlavaNextProcessor", {
        **PATCHES, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
    }),
    "llava-onevision": ("llava_onevision.LlavaOnevisionProcessor", {
        "image_token": "<image>", "num_image_tokens": 16, "vision_aspect_ratio": "anyres_max_3",
        "vision_feature_select_strategy": "full",
    }),
    "internvl": ("internvl.InternVLProcessor", {
        "image_token": "<image>", "start_image_token": "<img>", "end_image_token": "</img>",
        "image_seq_length": 4,
    }),
    "gemma4-images": ("gemma4.Gemma4Processor", {
        "image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
    }),
    "minicpm-v": ("minicpmv4_6.MiniCPMV4_6Processor", MINICPM),
    "pixtral": ("pixtral.PixtralProcessor", {**PIXTRAL, "spatial_merge_size": 1}),
    "mistral3-images": ("pixtral.PixtralProcessor", {**PIXTRAL, "spatial_merge_size": 2}),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def directories(place):
    return {kind: seeing.build(place, kind) for kind in PROCESSORS}


def reader(directory, **options):
    return open_reader(directory, Tokenizer.open(directory), EngineConfig(**options))


def library_processor(name, image_processor, attributes):
    """The processor of transformers, which cannot be made without torchvision."""
    module, _, name = name.partition(".")
    stem = f"transformers.models.{module}"
    with pytest.MonkeyPatch.context() as patch:
        if module == "pixtral":  # has a function of this module, as that for PIL
            pil = importlib.import_module(f"{stem}.image_processing_pil_{module}")
            patch.setitem(sys.modules, f"{stem}.image_processing_{module}", pil)
        processing = importlib.import_module(f"{stem}.processing_{module}")
    made = object.__new__(getattr(processing, name))
    vars(made).update(image_processor=image_processor, **attributes)
    return made


@pytest.mark.parametrize("kind", PROCESSORS)
def test_the_text_of_an_image_is_that_of_the_processor(kind, directories):
    opened, (name, attributes) = reader(directories[kind]), PROCESSORS[kind]
    library = library_processor(name, seeing.processor(kind), attributes)
    pictures = [seeing.image(seed, *size) for seed, size in enumerate(SIZES)]
    lengths = set()
    for request in [*([picture] for picture in pictures), pictures[:3]]:
        prepared = opened.read(find_media(seeing.chat(*request)))
        options = seeing.OPTIONS.get(kind, {})
        batch = [request] if kind == "llava-onevision" else request
        processed = library.image_processor(batch, return_tensors="np", **options)
        for index, image in enumerate(prepared):
            more = WRITING.get(kind, {})
            assert image.text == library.replace_image_token(processed, image_idx=index, **more)
            assert image.count == image.text.count(attributes["image_token"])
            lengths.add(image.count)
    assert len(lengths) > 3, "sizes make a difference"


def test_images_of_a_prompt_are_numbered_as_by_the_processor(directories):
    opened = reader(directories["minicpm-v"])
    library = library_processor(PROCESSORS["minicpm-v"][0], None, MINICPM)
    pictures = [seeing.image(seed, *size) for seed, size in enumerate(SIZES[:3])]
    images = opened.read(find_media(seeing.chat(*pictures)))
    text = "".join(f"{number}: {opened.token} " for number in range(3))
    texts = library._prepend_local_ids([text], [each.text for each in images], opened.token)
    assert opened.expand(text, images) == "".join(f"{n}: {texts[n]} " for n in range(3))
    assert texts[2].startswith("<image_id>2</image_id><image>")


ONEVISION = {
    "architectures": ["LlavaOnevisionForConditionalGeneration"], "image_token_index": 3,
    "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14},
}  # fmt: skip
NEXT = {
    "architectures": ["LlavaNextForConditionalGeneration"], "image_token_index": 3,
    "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name", "attributes"),
    [
        (ONEVISION, "llava_onevision.LlavaOnevision",
         {"num_image_tokens": 729, "vision_aspect_ratio": "anyres_max_9"}),
        (NEXT, "llava_next.LlavaNext", {"patch_size": 14, "num_additional_image_tokens": 0}),
    ],
)  # fmt: skip
def test_published_sizes_give_as_many_vectors_as_in_the_library(config, name, attributes):
    image_processor = getattr(transformers, f"{name.partition('.')[2]}ImageProcessorPil")()
    library = library_processor(f"{name}Processor", image_processor, attributes)
    tile = config["vision_config"]["image_size"]
    prompt_format = find_prompt_format(config)
    numbers = random.Random(3)
    sizes = [(numbers.randint(1, 3000), numbers.randint(1, 3000)) for _ in range(300)]
    sizes += [(1, 5000), (5000, 1), (384, 384), (2304, 2304), (336, 1008)]
    expected = [library._get_number_of_features(*size, tile, tile) for size in sizes]
    cut = np.empty((1, 2))  # into several tiles
    counts = [
        prompt_format.write(
            ["i"], prompt_format.count, {"pixel_values": cut, "image_sizes": np.array([size])}
        )
        for size in sizes
    ]
    assert [len(text) for text in counts] == expected
    assert len(set(expected)) > 30


def test_the_hash_of_an_uncut_image_among_several_is_another(directories):
    picture = seeing.image(1)
    for kind, expected in (("llava-onevision", 2), ("llava-next", 1)):
        opened = reader(directories[kind])
        alone, shared = (
            opened.read(find_media(seeing.chat(*[picture] * count)))[0] for count in (1, 2)
        )
        assert len({alone.digest, shared.digest}) == expected


def test_a_prompt_that_images_make_too_long_never_reaches_the_tower(directories):
    class Tower:
        def compute(self, images):
            raise AssertionError("computed")

    directory = directories["llava-onevision"]
    tokenizer = Tokenizer.open(directory)
    template = ChatTemplate.open(directory, tokenizer.special_tokens)
    opened = Processor(tokenizer, template, CARD, images=reader(directory), tower=Tower())
    assert CARD.max_model_len > 60
    small = seeing.chat(*[seeing.image(1)] * 3)
    with pytest.raises(AssertionError, match="computed"):
        opened.prepare(Generate(messages=small))
    large = [*seeing.chat("x" * (CARD.max_model_len - 60)), *small]
    with pytest.raises(RequestRefused) as caught:
        opened.prepare(Generate(messages=large))
    assert caught.value.refused.reason == "context"


def test_an_image_that_sees_itself_fits_into_the_window(directories, tmp_path):
    directory = directories["gemma4-images"]
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    fields = json.loads((directory / "config.json").read_text())
    fields["text_config"] |= {"use_bidirectional_attention": "vision", "sliding_window": 62}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidField, match="63 tokens that attend .* at most the 62"):
        reader(tmp_path).read(find_media(seeing.chat(seeing.image(1))))


def test_an_image_that_is_too_thin_for_its_processor_is_refused(directories):
    thin = seeing.image(1, 3, 4000)
    with pytest.raises(InvalidField, match="cannot be prepared"):
        reader(directories["pixtral"]).read(find_media(seeing.chat(thin)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_aspect_ratio": "square"}, "vision_aspect_ratio 'square', expected anyres_max_"),
        ({"vision_feature_select_strategy": "default"}, "does not select the 27 x 27 patches"),
        ({"vision_config": None}, "has no vision_config"),
        ({"vision_config": {"image_size": [384, 200], "patch_size": 14}}, r"image_size \[384, 200"),
        ({"vision_config": {"image_size": 8, "patch_size": 14}}, "patch_size 14 .* at most"),
    ],
)
def test_settings_that_no_format_fits_are_refused(changes, message):
    with pytest.raises(StartError, match=message):
        find_prompt_format({**ONEVISION, **changes})


def test_a_tokenizer_without_the_tokens_of_rows_is_refused(directories, tmp_path):
    for file in directories["pixtral"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    text = (tmp_path / "tokenizer.json").read_text().replace("[IMG_BREAK]", "[BREAK]")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(StartError, match=r"has no token '\[IMG_BREAK\]'"):
        reader(tmp_path)


WITHOUT_TORCH = """
import sys
from pathlib import Path
sys.modules["torch"] = None
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.messages import MediaSource
from mindspore_serving.llm.images.reader import open_reader
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
for name in sys.argv[2:]:
    reader = open_reader(Path(name), Tokenizer.open(name), EngineConfig())
    print(*(image.count for image in reader.read([MediaSource("image", sys.argv[1])])))
"""


def test_images_are_prepared_without_pytorch(directories):
    command = [sys.executable, "-c", WITHOUT_TORCH, seeing.uri(seeing.image(1))]
    process = subprocess.run(
        [*command, *map(str, directories.values())],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    counts = ["70", "70", "4", "63", "12", "35", "12"]
    assert (process.returncode, process.stdout.split()) == (0, counts)
