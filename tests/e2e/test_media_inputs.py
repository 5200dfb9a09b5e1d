"""Videos, documents and pictures of tool results in every protocol that has them, by real clients.

Answers are equal to those for the same frames and pages sent as pictures, and files that cannot be
used are refused in the form of the protocol, by the field of the request.
"""

import base64
import io

import anthropic
import ollama
import openai
import pypdfium2
import pytest
from google import genai
from google.genai import types
from PIL import Image

from tests.e2e.harness import config, serving
from tests.llm import chatty, clips, seeing
from tests.llm.images.test_requests import header_of
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

COUNT, TEXT = 8, "What is it?"
OPTIONS = {
    "dtype": "f32", "kv_cache_memory": 8 << 20, "preparation_timeout": PATIENCE,
    "max_video_frames": 2, "max_document_pages": 3,
}  # fmt: skip
VIDEO, PDF = clips.video(4), clips.pdf("First", "Second")
IMAGE = seeing.image(1)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    directory = tmp_path_factory.mktemp("media")
    seeing.build(directory, "llava")
    chatty.build(directory)
    models = [config(directory, name, llm_options=OPTIONS) for name in ("llava", "chatty")]
    with serving(directory, *models) as served:
        yield served


@pytest.fixture(scope="module")
def url(calls):
    return f"http://127.0.0.1:{calls.http}"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def gemini(url):
    with genai.Client(api_key="none", http_options={"base_url": url}) as client:
        yield client


def chat(client, *parts, model="llava", messages=None):
    messages = messages or [{"role": "user", "content": list(parts)}]
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=COUNT, temperature=0
    )
    return answer.choices[0].message.content


def respond(client, *parts, model="llava", items=None):
    items = items or [{"role": "user", "content": list(parts)}]
    answer = client.responses.create(
        model=model, input=items, max_output_tokens=COUNT, temperature=0, store=False
    )
    return answer.output_text


def message(claude, *blocks, model="llava", messages=None):
    messages = messages or [{"role": "user", "content": list(blocks)}]
    answer = claude.messages.create(
        model=model, messages=messages, max_tokens=COUNT, extra_body={"temperature": 0}
    )
    return answer.content[0].text


def generate(gemini, *parts, model="llava", contents=None):
    options = types.GenerateContentConfig(max_output_tokens=COUNT, temperature=0)
    contents = contents or [types.Content(role="user", parts=list(parts))]
    return gemini.models.generate_content(model=model, contents=contents, config=options).text


def text(content, kind="text"):
    return {"type": kind, "text": content}


def base64_source(file, media_type):
    data = base64.b64encode(file).decode()
    return {"type": "base64", "media_type": media_type, "data": data}


def frames():
    """The two frames of the video that are read, with their times, by a decoder of the test."""
    import av

    with av.open(io.BytesIO(VIDEO)) as container:
        images = [frame.to_image() for frame in container.decode(video=0)]
    return [("00:01 ", images[10]), ("00:03 ", images[30])]


def pages():
    with pypdfium2.PdfDocument(PDF) as pdf:
        return [page.render(scale=1280 / 200).to_pil().convert("RGB") for page in pdf]


@pytest.fixture(scope="module")
def shown(client):
    """The answer to the frames of the video as pictures."""
    parts = [part for at, image in frames() for part in (text(at), seeing.part(image))]
    return chat(client, *parts, text(TEXT))


@pytest.fixture(scope="module")
def paged(client):
    """The answer to the pages of the PDF as pictures."""
    heads = ("a.pdf, page 1: ", "a.pdf, page 2: ")
    pairs = zip(heads, pages(), strict=True)
    parts = [part for head, image in pairs for part in (text(head), seeing.part(image))]
    return chat(client, *parts, text(TEXT))


def test_a_video_is_answered_like_its_frames(client, gemini, shown):
    assert chat(client, clips.video_part(VIDEO), text(TEXT)) == shown
    part = {"type": "input_video", "video_url": clips.uri(VIDEO)}
    assert respond(client, part, text(TEXT, "input_text")) == shown
    part = types.Part.from_bytes(data=VIDEO, mime_type="video/mp4")
    assert generate(gemini, part, types.Part(text=TEXT)) == shown


def test_a_document_is_answered_like_its_pages(client, claude, paged):
    assert chat(client, clips.file_part(PDF, "a.pdf"), text(TEXT)) == paged
    part = {"type": "input_file", "file_data": clips.uri(PDF, "application/pdf")}
    answer = respond(client, part | {"filename": "a.pdf"}, text(TEXT, "input_text"))
    assert answer == paged
    block = {"type": "document", "title": "a.pdf"}
    block["source"] = base64_source(PDF, "application/pdf")
    assert message(claude, block, text(TEXT)) == paged


def test_a_document_of_gemini_is_read(gemini):
    part = types.Part.from_bytes(data=PDF, mime_type="application/pdf")
    options = types.CountTokensConfig()
    contents = [types.Content(role="user", parts=[part, types.Part(text=TEXT)])]
    count = gemini.models.count_tokens(model="llava", contents=contents, config=options)
    heads = len("Page 1: Page 2: ")
    plain = gemini.models.count_tokens(model="llava", contents=TEXT, config=options)
    assert count.total_tokens == plain.total_tokens + heads + 2 * 16


def test_a_model_of_texts_reads_the_text_of_documents(client, claude):
    expected = chat(client, text(f"a.pdf\n\nFirst\n\nSecond\n{TEXT}"), model="chatty")
    assert chat(client, clips.file_part(PDF, "a.pdf"), text(TEXT), model="chatty") == expected
    block = {"type": "document", "title": "a.pdf"}
    block["source"] = base64_source(PDF, "application/pdf")
    assert message(claude, block, text(TEXT), model="chatty") == expected


def test_texts_and_contents_are_documents_of_anthropic(claude):
    plain = {"type": "text", "media_type": "text/plain", "data": "Hello"}
    inner = {"type": "content", "content": [text("Hello")]}
    expected = message(claude, text(f"T\nHello\n{TEXT}"), model="chatty")
    for source in (plain, inner):
        block = {"type": "document", "title": "T", "source": source}
        assert message(claude, block, text(TEXT), model="chatty") == expected


def test_pictures_of_tool_results_are_seen_in_every_protocol(client, claude, gemini):
    """The same conversation in each protocol: the model calls a tool, whose result is a picture."""
    question = {"role": "user", "content": TEXT}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        question,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("Here:"), seeing.part(IMAGE)]},
    ]
    expected = chat(client, messages=messages)
    output = [text("Here:", "input_text")]
    output += [{"type": "input_image", "image_url": seeing.uri(IMAGE)}]
    items = [
        question,
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    assert respond(client, items=items) == expected
    source = {"type": "base64", "media_type": "image/png", "data": seeing.encoded(IMAGE)}
    result = [text("Here:"), {"type": "image", "source": source}]
    messages = [
        question,
        {"role": "assistant", "content": [tool_use := {"type": "tool_use", "id": "c"}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": result}],
        },
    ]
    tool_use.update(name="look", input={})
    assert message(claude, messages=messages) == expected
    png = base64.b64decode(seeing.encoded(IMAGE))
    blob = types.FunctionResponseBlob(mime_type="image/png", data=png)
    response = types.FunctionResponse(
        name="look",
        response={"output": "Here:"},
        parts=[types.FunctionResponsePart(inline_data=blob)],
    )
    called = types.Part(function_call=types.FunctionCall(name="look", args={}))
    contents = [
        types.Content(role="user", parts=[types.Part(text=TEXT)]),
        types.Content(role="model", parts=[called]),
        types.Content(role="user", parts=[types.Part(function_response=response)]),
    ]
    assert generate(gemini, contents=contents) == expected


def test_a_picture_is_told_by_its_content_and_not_by_its_type(client):
    jpeg = base64.b64decode(seeing.encoded(IMAGE, "JPEG"))
    answers = {
        chat(client, seeing.part(clips.uri(jpeg, kind)), text(TEXT))
        for kind in ("image/png", "image/jpeg", "text/html", "")
    }
    assert len(answers) == 1


def test_only_the_first_picture_of_many_in_a_file_is_read(client):
    buffer = io.BytesIO()
    rest = [Image.new("RGB", (50, 40), (shade, 0, 0)) for shade in range(1, 200)]
    IMAGE.quantize().save(buffer, "GIF", save_all=True, append_images=rest)
    still = io.BytesIO()
    IMAGE.quantize().save(still, "GIF")
    parts = [seeing.part(clips.uri(file.getvalue(), "image/gif")) for file in (buffer, still)]
    assert chat(client, parts[0], text(TEXT)) == chat(client, parts[1], text(TEXT))


INSIDE = "http://169.254.169.254/latest/meta-data"
BAD_PARTS = {  # of a chat: the part, the field in it, and what the error says
    "pixels": (seeing.part(header_of(30_000, 30_000)), "image_url", "too many pixels"),
    "image url": (seeing.part(INSIDE), "image_url", "this server fetches no files"),
    "video url": (
        {"type": "video_url", "video_url": {"url": INSIDE}}, "video_url", "fetches no files",
    ),
    "file url": (
        {"type": "file", "file": {"file_url": INSIDE}}, "file.file_url", "fetches no files",
    ),
    "local file": (seeing.part("file:///etc/passwd"), "image_url", "no http or https URL"),
    "no picture": (seeing.part(clips.uri(b"<svg/>", "image/png")), "image_url", "is no JPEG"),
    "picture as video": (
        clips.video_part(base64.b64decode(seeing.encoded(IMAGE))), "video_url", "is no video",
    ),
    "cut video": (clips.video_part(VIDEO[:900]), "video_url", "broken or truncated"),
    "pages": (
        clips.file_part(clips.pdf("x", count=100_000)), "file.file_data", "100,000 pages",
    ),
    "playlist": (clips.video_part(b"#EXTM3U\nfile:///etc/passwd"), "video_url", "is no video"),
    "stored": ({"type": "file", "file": {"file_id": "f-1"}}, "file.file_id", "a stored file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PARTS)
def test_bad_files_are_refused_by_their_field(client, name):
    part, field, told = BAD_PARTS[name]
    with pytest.raises(openai.BadRequestError, match=told) as refused:
        chat(client, part)
    assert refused.value.param == f"messages[0].content[0].{field}"


def test_the_worker_answers_after_all_bad_files(client, shown):
    assert chat(client, clips.video_part(VIDEO), text(TEXT)) == shown


def test_bad_files_of_responses_are_refused_by_their_field(client):
    rows = [
        ({"type": "input_image", "file_id": "f-1"}, "file_id", "a stored file"),
        ({"type": "input_file", "file_id": "f-1"}, "file_id", "a stored file"),
        ({"type": "input_file", "file_url": INSIDE}, "file_url", "fetches no files"),
        ({"type": "input_file", "file_data": "AAAA"}, "file_data", "neither a PDF nor"),
        ({"type": "input_video", "video_url": INSIDE}, "video_url", "fetches no files"),
    ]
    for part, field, told in rows:
        with pytest.raises(openai.BadRequestError, match=told) as refused:
            respond(client, part)
        assert refused.value.param == f"input[0].content[0].{field}"


def test_bad_files_of_anthropic_are_refused_by_their_field(claude):
    rows = [
        ("document", {"type": "url", "url": INSIDE}, "url", "fetches no files"),
        ("document", base64_source(b"\0", "application/pdf"), "data", "neither a PDF nor"),
        ("image", {"type": "url", "url": INSIDE}, "url", "fetches no files"),
        ("image", base64_source(PDF, "image/png"), "data", "is no JPEG"),
    ]
    for kind, source, field, told in rows:
        block = {"type": kind, "source": source}
        for content, path in (
            ([block], "messages[0].content[0]"),
            (
                [{"type": "tool_result", "tool_use_id": "c", "content": [block]}],
                "messages[0].content[0].content[0]",
            ),
        ):
            with pytest.raises(anthropic.BadRequestError, match=told) as refused:
                message(claude, *content)
            assert f"{path}.source.{field} " in refused.value.message


def test_bad_files_of_gemini_and_ollama_are_refused_by_their_field(gemini, url):
    rows = [
        (
            types.Part.from_uri(file_uri=INSIDE, mime_type="video/mp4"),
            "fileData.fileUri",
            "fetches",
        ),
        (types.Part.from_bytes(data=b"x", mime_type="video/mp4"), "inlineData.data", "no video"),
        (types.Part.from_bytes(data=b"x", mime_type="audio/wav"), "inlineData", "reads no audio"),
    ]
    for part, field, told in rows:
        with pytest.raises(genai.errors.ClientError, match=told) as refused:
            generate(gemini, part)
        assert f"contents[0].parts[0].{field} " in str(refused.value)
    client = ollama.Client(url)
    messages = [{"role": "user", "content": TEXT, "images": [base64.b64encode(PDF).decode()]}]
    with pytest.raises(ollama.ResponseError, match=r"messages\[0\].images\[0\] is no JPEG"):
        client.chat("llava", messages)
    client._client.close()
