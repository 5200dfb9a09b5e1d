"""PDF files and texts in messages: pages as pictures, or as text for models without pictures."""

import base64

import numpy as np
import pytest
from msgspec import structs

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.documents import EDGE, extract_texts, read_text, render_pages
from mindspore_serving.llm.processing.prepared import is_small
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.frontends.openai.serving import CARD
from tests.llm import clips, seeing
from tests.llm.images.test_requests import processor

pytest.importorskip("pypdfium2")
pytestmark = pytest.mark.torch

FOREVER = float("inf")
CONFIG = EngineConfig()
BOXES = ["0 0 200 100", "0 0 2000 1000", "0 0 2000000000 1000000000"]  # in points


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return seeing.build(tmp_path_factory.mktemp("documents"), "llava")


def reads_texts(directory, **options):
    """A processor of a model that takes no pictures."""
    tokenizer = Tokenizer.open(directory)
    template = ChatTemplate.open(directory, tokenizer.special_tokens)
    card = structs.replace(CARD, max_model_len=1024)
    return Processor(tokenizer, template, card, limits=EngineConfig(**options))


def ask(*parts):
    return Generate(messages=[{"role": "user", "content": list(parts)}])


@pytest.mark.parametrize("box", BOXES)
def test_a_page_has_the_same_pixels_whatever_its_size_in_the_file(box):
    (page,) = render_pages(clips.pdf("Hello", box=box), CONFIG, FOREVER)
    assert page.size == (EDGE, EDGE // 2)
    assert (np.asarray(page) < 128).any(), "the text is black"


def test_pages_come_in_order_with_their_texts():
    file = clips.pdf("First", "Second", "Third")
    assert len(list(render_pages(file, CONFIG, FOREVER))) == 3
    assert extract_texts(file, CONFIG, FOREVER) == ["First", "Second", "Third"]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (clips.pdf(*["x"] * 33), "has 33 pages, expected at most 32 .max_document_pages."),
        (clips.pdf("x", count=100_000), "has 100,000 pages, expected at most 32"),
        (clips.pdf("x", count=3), "is broken: page 2"),
        (b"%PDF-1.7\nnothing", "is broken or truncated"),
        (clips.pdf("x")[:-60], "is broken or truncated"),
    ],
)
def test_documents_that_cannot_be_used_are_refused(file, told):
    for read in (render_pages, extract_texts):
        with pytest.raises(InvalidInputs, match=told):
            list(read(file, CONFIG, FOREVER))


def test_rendering_ends_at_its_deadline():
    with pytest.raises(InvalidInputs, match="takes longer to decode"):
        list(render_pages(clips.pdf("x"), CONFIG, 0.0))


def test_files_of_text_are_read_by_their_encoding():
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert read_text("schön".encode(encoding)) == "schön"
    for file in (b"\x00\x01", b"\xff\xd8\xff", "schön".encode("latin-1")):
        with pytest.raises(InvalidInputs, match="neither a PDF nor a text in UTF-8"):
            read_text(file)


def test_a_document_becomes_pictures_for_a_model_that_takes_them(directory):
    part = clips.file_part(clips.pdf("One", "Two"), "a.pdf")
    prompt = processor(directory, max_model_len=1024).read(ask(part, {"type": "text", "text": "?"}))
    assert len(prompt.images) == 2
    assert prompt.images[0].digest != prompt.images[1].digest
    image = "<image>" * 16
    assert prompt.text == f"user:a.pdf, page 1: {image}a.pdf, page 2: {image}?assistant:"


def test_a_document_becomes_its_text_for_a_model_without_pictures(directory):
    part = clips.file_part(clips.pdf("One", "Two"), "a.pdf")
    request = ask(part, {"type": "text", "text": "?"})
    prompt = reads_texts(directory).read(request)
    assert (prompt.text, prompt.images) == ("user:a.pdf\n\nOne\n\nTwo\n?assistant:", [])
    assert not is_small(request), "it is read in a process of its own"
    with pytest.raises(InvalidField, match="has no text, only pictures") as refused:
        reads_texts(directory).read(ask(clips.file_part(clips.pdf(""))))
    assert refused.value.field == "messages[0].content[0].file.file_data"


def test_a_text_is_put_where_its_part_is(directory):
    part = clips.file_part(b"a,b\n1,2", "t.csv", "text/csv")
    for reader in (processor(directory, max_model_len=1024), reads_texts(directory)):
        prompt = reader.read(ask(part, {"type": "text", "text": "?"}))
        assert prompt.text == "user:t.csv\n\na,b\n1,2\n?assistant:"


def test_a_file_without_a_data_uri_is_base64(directory):
    file = {"file_data": base64.b64encode(b"hello").decode()}
    prompt = reads_texts(directory).read(ask({"type": "input_file", **file}))
    assert prompt.text == "user:helloassistant:"


@pytest.mark.parametrize(
    ("part", "options", "told"),
    [
        ({"type": "file", "file": {"filename": "a"}}, {}, "file.file_url is missing, expected"),
        ({"type": "input_file"}, {}, r"\[0\].file_url is missing, expected file_data"),
        ({"type": "input_file", "file_url": "http://localhost/"}, {}, "fetches no files"),
        ({"type": "input_file", "file_url": "file:///etc/passwd"}, {}, "no http or https URL"),
        (clips.file_part(b"x" * 99), {"max_file_bytes": 9}, "99 bytes, expected at most 9"),
        (clips.file_part(b"x"), {"max_documents": 0}, "documents, expected none: max_documents"),
        (clips.video_part(b"x"), {}, "is a video, but the model reads no images"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_their_field(directory, part, options, told):
    with pytest.raises(InvalidField, match=told) as refused:
        reads_texts(directory, **options).read(ask(part))
    assert refused.value.field.startswith("messages")
