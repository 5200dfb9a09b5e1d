"""Images of requests: limits before work, and a clear answer to what cannot be used."""

import base64
import io
import zlib

import msgspec
import pytest
from msgspec import structs
from PIL import Image

from mindspore_serving.core.llm_messages import Generate, Tokenize
from mindspore_serving.core.prefill_messages import PromptVectors
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.blocks import hash_block
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.images.media import MediaReader
from mindspore_serving.llm.images.messages import find_media
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.reader import open_reader
from mindspore_serving.llm.processing.image_prompt import ImagePrompt
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.frontends.openai.serving import CARD
from tests.llm import seeing

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

ONE = seeing.image(1)
PLACE = "messages[0].content[0].image_url"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return seeing.build(tmp_path_factory.mktemp("asking"), "llava")


def reader(directory, **options):
    return open_reader(directory, Tokenizer.open(directory), EngineConfig(**options))


def media(directory, **options):
    return MediaReader(reader(directory, **options), EngineConfig(**options))


def processor(directory, **options):
    tokenizer = Tokenizer.open(directory)
    template = ChatTemplate.open(directory, tokenizer.special_tokens)
    return Processor(
        tokenizer,
        template,
        structs.replace(CARD, max_model_len=options.get("max_model_len") or CARD.max_model_len),
        images=reader(directory, **options),
        limits=EngineConfig(**options),
    )


def chat(url):
    return [{"role": "user", "content": [seeing.part(url)]}]


def header_of(width, height):
    """The beginning of a PNG file of that size."""
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("data:image/png;base64,@@@", {}, "is no valid base64"),
        ("data:image/png,abc", {}, "is no base64 data URI"),
        ("data:image/png;base64,aGVsbG8=", {}, "is no JPEG, PNG, WEBP, BMP or GIF file"),
        (header_of(900, 900), {}, "is broken"),
        (header_of(8000, 8000), {}, "8000 x 8000 pixels, expected at most 32,000,000"),
        (seeing.uri(ONE), {"max_image_pixels": 1999}, "50 x 40 pixels, expected at most 1,999"),
        (seeing.uri(ONE), {"max_image_bytes": 100}, "bytes, expected at most 100"),
        ("http://localhost/a.png", {}, "this server fetches no files: send the file as a data"),
        ("file:///etc/passwd", {}, "is no http or https URL"),
        ("", {}, "has no url"),
    ],
)
def test_invalid_and_too_large_images_are_refused_by_their_field(url, options, told, directory):
    with pytest.raises(InvalidField) as found:
        ImagePrompt(media(directory, **options), chat(url))
    assert found.value.field == PLACE
    assert told in str(found.value)


def test_more_images_than_allowed_are_refused_before_any_is_read(directory):
    messages = [{"role": "user", "content": [seeing.part("data:,wrong")] * 3}]
    with pytest.raises(InvalidField, match="messages have 3 images, expected at most 2"):
        ImagePrompt(media(directory, max_images=2), messages)


def test_a_model_that_takes_no_images_says_so():
    with pytest.raises(InvalidField, match="is an image, but the model reads no images"):
        ImagePrompt(MediaReader(None, EngineConfig()), chat(seeing.uri(ONE)))


def test_text_that_stands_for_an_image_is_refused_beside_images(directory):
    with pytest.raises(InvalidInputs, match="1 images and 2 times '<image>'"):
        processor(directory).read(Generate(messages=seeing.chat("an <image> and ", ONE)))
    found = processor(directory).read(Generate(messages=seeing.chat("an <image>")))
    assert found.ids.count(3) == 1


def test_a_prompt_with_images_is_not_cut(directory):
    with pytest.raises(InvalidField, match="truncate is set, expected none"):
        processor(directory).read(Generate(messages=seeing.chat(ONE), truncate=5))


def test_oldest_turns_leave_with_their_images(directory):
    answer = {"role": "assistant", "content": "x" * 200}
    messages = [*seeing.chat(ONE), answer, *seeing.chat("now ", ONE, seeing.image(2))]
    found = processor(directory).read(Generate(messages=messages, drop_turns=True))
    assert len(found.images) == 2
    assert found.text.startswith("user:now <image>")


def test_tokens_of_a_chat_are_counted_with_its_images(directory):
    class Outputs:
        def prompt(self, ids):
            return tuple(ids)

    found = processor(directory).tokenize(Tokenize(messages=seeing.chat(ONE)), Outputs())
    assert found.tokens.count(3) == 16


def test_an_image_mark_is_matched_up_to_the_next_mark_only():
    sources = find_media((), "![](data:![](data:image/png;base64,AA)")
    assert [source.url for source in sources] == ["data:image/png;base64,AA"]
    (source,) = find_media((), "![](https://here/a![b]!.png)")
    assert source.url == "https://here/a![b]!.png"
    assert find_media((), "![](data:" * 300_000) == [], "in hours, if each is followed"


def test_an_image_for_which_the_memory_is_not_enough_is_not_called_broken(directory, monkeypatch):
    found = reader(directory)

    def grow(*args, **options):
        raise MemoryError

    monkeypatch.setattr(found, "_processor", grow)
    with pytest.raises(MemoryError):
        found.read(find_media(chat(seeing.uri(ONE))))


def test_images_of_small_files_are_recognised_whatever_their_format(directory):
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF"):
        url = f"data:;base64,{seeing.encoded(ONE, kind)}"
        prompt = ImagePrompt(media(directory), chat(url))
        (image,) = prompt.of(prompt.messages)
        assert image.count == 16


def test_a_template_of_texts_gets_the_token_in_place_of_an_image():
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " hi"}]}]
    assert template.render(messages, media_tokens={"image": "<image>"}) == "user: <image> hi"


def test_a_template_of_parts_gets_texts_as_parts():
    template = ChatTemplate(seeing.TEMPLATE)
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages) == "user:hiassistant:"
    goes_on = [*messages, {"role": "assistant", "content": "you"}]
    assert template.render(goes_on, continue_final_message=True).endswith("assistant:you")


def test_images_are_found_in_order_with_their_places():
    first, second = chat("data:,a")[0], seeing.chat("text", "more")[0]
    sources = find_media([second, first, {"role": "user", "content": "text"}])
    assert [(source.field, source.url) for source in sources] == [
        ("messages[1].content[0].image_url", "data:,a")
    ]


def test_a_model_without_images_has_no_form():
    assert find_prompt_format({"architectures": ["LlamaForCausalLM"]}) is None


def test_a_chunk_never_ends_within_a_bidirectional_image():
    seen = [(b"a", np.zeros((3, 2), np.float32)), (b"b", np.zeros((4, 2), np.float32))]
    places = [2, 3, 4, 8, 9, 10, 11]
    whole = PromptImages(places, seen, is_bidirectional=True)
    pieces = {(0, 2): 2, (0, 3): 2, (2, 3): 5, (3, 4): 5, (0, 5): 5, (0, 10): 8, (8, 9): 12}
    assert {piece: whole.end_of_piece(*piece) for piece in pieces} == pieces
    assert whole.end_of_piece(11, 30) == 30
    assert PromptImages(places, seen).end_of_piece(0, 3) == 3
    assert whole.between(3, 12).ends().tolist() == [2, 2, 9, 9, 9, 9]


def test_blocks_for_another_worker_end_before_a_bidirectional_image():
    seen = [(b"a", np.zeros((3, 2), np.float32)), (b"b", np.zeros((4, 2), np.float32))]
    places = [2, 3, 4, 8, 9, 10, 11]
    whole = PromptImages(places, seen, is_bidirectional=True)
    assert [whole.num_whole(count, 4) for count in range(5)] == [0, 0, 2, 3, 4]
    assert [whole.num_whole(count, 5) for count in range(4)] == [0, 1, 1, 3]
    assert [PromptImages(places, seen).num_whole(count, 4) for count in (0, 1, 4)] == [0, 1, 4]


def test_images_of_the_beginning_of_a_prompt_are_the_same_elsewhere():
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    axes = np.arange(36, dtype=np.int32).reshape(12, 3)
    images = PromptImages(
        [2, 3, 4, 8, 9, 10], [(b"a", vectors[:3]), (b"b", vectors[3:])],
        is_bidirectional=True, fill_id=7, rope_positions=axes,
    )  # fmt: skip
    for end in (3, 5, 10, 12):
        sent = msgspec.msgpack.decode(
            msgspec.msgpack.encode(images.message(end)), type=PromptVectors
        )
        other = PromptImages.received(sent)
        assert other.identity(0, end) == images.identity(0, end)
        here, there = (each.inputs([3] * end, 0) for each in (images, other))
        assert there[0] == here[0]
        assert there[2].tolist() == axes[:end].tolist()
        assert there[1].positions.tolist() == here[1].positions.tolist()
        assert there[1].vectors.tolist() == here[1].vectors.tolist()
        assert there[1].is_bidirectional
    assert images.message(2) is None
    assert images.num_bytes == vectors.nbytes
    plain = PromptImages([0], [(b"a", vectors[:1])])
    assert PromptImages.received(plain.message(1)).inputs([3], 0)[2] is None


def test_the_hash_of_a_block_covers_its_part_of_an_image():
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    images = PromptImages([2, 3, 4, 8, 9, 10], [(b"a", vectors[:4]), (b"b", vectors[4:])])
    assert images.identity(0, 2) == b""
    assert images.identity(0, 4) != images.identity(4, 8)
    assert images.identity(8, 12).count(b"a") == images.identity(8, 12).count(b"b") == 1
    other = PromptImages([2, 3, 4, 8, 9, 10], [(b"c", vectors[:4]), (b"b", vectors[4:])])
    tokens = [3, 3, 3, 3]
    hashes = {hash_block(b"", tokens, one.identity(2, 6)) for one in (images, other)}
    assert len(hashes) == 2
    found = images.between(4, 10)
    assert found.positions.tolist() == [0, 4, 5]
    assert found.vectors.tolist() == vectors[2:5].tolist()
    assert images.between(5, 8) is None
