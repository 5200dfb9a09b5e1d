"""Pictures and sounds in the chat of the page, in a real Chromium.

One test, a long one, has a model that takes pictures.  In the others, which need certain answers
and faults, what such a model would answer is given in its place.
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.talking import MODEL, Talking, serving
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import (
    ask,
    begin_anew,
    bodies,
    ended,
    finished,
    open_chat,
    record,
    recorded,
    reopen,
    settings,
    stored,
    streamed,
)
from tests.frontends.page.sharing import shared
from tests.frontends.page.test_access import SIZES, check, load_axe, needs_axe
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
COMPLETIONS = "/v1/chat/completions"
KINDS = {
    "png": "image/png", "tiff": "image/tiff", "mp4": "video/mp4", "wmv": "video/x-ms-wmv",
    "pdf": "application/pdf", "mp3": "audio/mpeg", "mid": "audio/midi",
}  # fmt: skip
ATTACHED = "document.querySelectorAll('#attached li').length"
FAILURE = "document.querySelector('.failure').innerText"


def png(side: int = 4) -> bytes:
    """A red square."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + end

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * side) * side
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


RED = base64.b64encode(png()).decode()
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED}"}}


@pytest.fixture
def seeing(request: pytest.FixtureRequest, chromium: Browser, server: Talking) -> Iterator[Browser]:
    """The page with a model that takes pictures, and says "red"."""

    def see() -> None:
        say_red(chromium)
        open_chat(chromium, server)

    def see_anew() -> None:
        say_red(chromium)
        begin_anew(chromium)

    yield from shared(request, chromium, "seeing", see, see_anew)


def say_red(browser: Browser) -> None:
    card = {"id": MODEL, "max_model_len": 1000, "input_modalities": ["text", "image", "audio"]}
    browser.answer("/v1/models", 200, json.dumps({"data": [card]}))
    browser.answer(COMPLETIONS, 200, streamed({"content": "red"}), "text/event-stream")


def give(page: Browser, how: str, name: str = "red.png", body: str = RED, more: int = 0) -> None:
    """A file, with so many bytes behind it: "chosen", "dropped" or "pasted"."""
    kind = KINDS.get(name.split(".")[1], "text/plain")
    act = {
        "chosen": "const one = document.getElementById('pictures'); one.files = data.files;"
        "one.dispatchEvent(new Event('change'));",
        "dropped": "document.getElementById('lanes').dispatchEvent(new DragEvent('drop',"
        "{dataTransfer: data, bubbles: true, cancelable: true}));",
        "pasted": "document.getElementById('text').dispatchEvent(new ClipboardEvent('paste',"
        "{clipboardData: data, bubbles: true, cancelable: true}));",
    }
    page.evaluate(
        f"(() => {{ const data = new DataTransfer();"
        f"const bytes = Uint8Array.from(atob('{body}'), (one) => one.charCodeAt(0));"
        f"data.items.add(new File([bytes, new Uint8Array({more})], '{name}', {{type: '{kind}'}}));"
        f"{act[how]} }})()"
    )


@pytest.mark.parametrize("how", ["chosen", "dropped", "pasted"])
def test_a_picture_goes_with_the_message(seeing: Browser, how: str) -> None:
    give(seeing, how)
    seeing.until(f"{ATTACHED} === 1")
    ask(seeing, "Which colour?")
    assert finished(seeing) == "red"
    assert bodies(seeing)[-1]["messages"] == [
        {"role": "user", "content": [PART, {"type": "text", "text": "Which colour?"}]}
    ]
    assert seeing.evaluate(ATTACHED) == 0
    canvas = "document.querySelector('.message.user canvas')"
    assert seeing.evaluate(f"{canvas}.ariaLabel") == "Image red.png"
    seeing.until(f"{canvas}.width === 4")
    pixel = f"[...{canvas}.getContext('2d').getImageData(1, 1, 1, 1).data]"
    assert seeing.evaluate(pixel) == [255, 0, 0, 255]


def test_an_image_alone_is_a_message_unless_removed(seeing: Browser) -> None:
    give(seeing, "chosen", "one.png")
    give(seeing, "chosen", "two.png")
    seeing.until(f"{ATTACHED} === 2")
    seeing.evaluate("document.querySelector('[aria-label=\"Remove one.png\"]').focus()")
    seeing.press("Enter")
    seeing.until(f"{ATTACHED} === 1 && document.activeElement.id === 'text'")
    seeing.press("Enter")
    finished(seeing)
    assert bodies(seeing)[-1]["messages"] == [{"role": "user", "content": [PART]}]
    assert [one["name"] for one in stored(seeing)[0]["images"]] == ["two.png"]


@pytest.mark.parametrize(
    ("name", "body", "more", "words"),
    [
        ("large.png", RED, 8_000_000, "large.png has 8.0 MB; an image may have at most 8 MB."),
        ("notes.txt", RED, 0, "notes.txt is not a text in UTF-8, a PDF or an image."),
        ("photo.tiff", RED, 0, "photo.tiff cannot be sent: images may be"),
        ("broken.png", "AAAA", 0, "broken.png cannot be read as an image."),
        ("film.mp4", RED, 24_000_000, "film.mp4 has 24.0 MB; it may have at most 24 MB."),
        ("film.wmv", RED, 0, "film.wmv cannot be sent: videos may be MP4"),
        ("song.mid", RED, 0, "song.mid cannot be sent: sounds may be WAV, MP3"),
        ("song.mp3", RED, 24_000_000, "song.mp3 has 24.0 MB; it may have at most 24 MB."),
    ],
)
def test_why_a_file_is_not_taken_is_on_the_screen(
    seeing: Browser, name: str, body: str, more: int, words: str
) -> None:
    give(seeing, "dropped", name, body, more)
    seeing.until(f"{FAILURE}.startsWith({json.dumps(words)})")
    assert seeing.evaluate(ATTACHED) == 0
    give(seeing, "dropped")
    seeing.until(f"{ATTACHED} === 1 && {FAILURE} === ''")


@pytest.mark.parametrize(("how", "name"), [("dropped", "film.mp4"), ("chosen", "paper.pdf")])
def test_a_video_or_a_pdf_is_sent_to_a_model_with_images(
    seeing: Browser, how: str, name: str
) -> None:
    body = base64.b64encode(b"%PDF-1.4 and more").decode()
    give(seeing, how, name, body)
    seeing.until(f"{ATTACHED} === 1")
    assert seeing.text("#attached .file").split("\n")[0].startswith(name)
    ask(seeing, "What happens?")
    finished(seeing)
    url = f"data:{KINDS[name.split('.')[1]]};base64,{body}"
    part = {"type": "video_url", "video_url": {"url": url}}
    if name.endswith("pdf"):
        part = {"type": "file", "file": {"filename": name, "file_data": url}}
    (message,) = bodies(seeing)[-1]["messages"]
    assert message["content"] == [part, {"type": "text", "text": "What happens?"}]
    assert name in seeing.text(".message.user .file")


@pytest.mark.parametrize("how", ["dropped", "chosen"])
def test_a_sound_goes_with_the_message(seeing: Browser, how: str) -> None:
    body = base64.b64encode(b"ID3 and more").decode()
    give(seeing, how, "song.mp3", body)
    seeing.until(f"{ATTACHED} === 1")
    ask(seeing, "Who sings?")
    finished(seeing)
    (message,) = bodies(seeing)[-1]["messages"]
    part = {"type": "input_audio", "input_audio": {"data": body, "format": "mp3"}}
    assert message["content"] == [part, {"type": "text", "text": "Who sings?"}]
    assert "song.mp3" in seeing.text(".message.user .file")


MICROPHONE = "document.getElementById('microphone')"


def test_a_recording_goes_with_the_message(seeing: Browser) -> None:
    seeing.click("#microphone")
    seeing.until(f"{MICROPHONE}.ariaPressed === 'true'")
    seeing.click("#microphone")
    seeing.until(f"{ATTACHED} === 1 && {MICROPHONE}.ariaPressed === 'false'")
    ask(seeing, "Who speaks?")
    finished(seeing)
    (message,) = bodies(seeing)[-1]["messages"]
    sound = message["content"][0]["input_audio"]
    assert sound["format"] == "webm"
    assert base64.b64decode(sound["data"]).startswith(b"\x1a\x45\xdf\xa3")


def test_a_microphone_that_cannot_be_used_is_said(seeing: Browser) -> None:
    seeing.evaluate(
        "navigator.mediaDevices.getUserMedia = async () => { throw new Error('no microphone') }"
    )
    seeing.click("#microphone")
    seeing.until(f"{FAILURE} === 'The microphone cannot be used.'")
    seeing.evaluate("delete navigator.mediaDevices.getUserMedia")
    assert seeing.evaluate(ATTACHED) == 0


SEEN = "document.getElementById('seen')"
OPENED = "document.getElementById('viewfinder').open"


def test_a_picture_of_the_camera_goes_with_the_message(seeing: Browser) -> None:
    seeing.click("#camera")
    seeing.until(f"{OPENED} && {SEEN}.videoWidth > 0")
    seeing.click("#take")
    seeing.until(f"{ATTACHED} === 1 && !{OPENED} && {SEEN}.srcObject === null")
    ask(seeing, "Which colour?")
    finished(seeing)
    (message,) = bodies(seeing)[-1]["messages"]
    assert message["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")


def test_a_camera_is_off_when_its_picture_is_closed(seeing: Browser) -> None:
    seeing.click("#camera")
    seeing.until(f"{OPENED} && {SEEN}.videoWidth > 0")
    seeing.evaluate(f"window.tracks = {SEEN}.srcObject.getTracks()")
    seeing.press("Escape")
    seeing.until(f"!{OPENED} && window.tracks[0].readyState === 'ended'")
    assert seeing.evaluate(ATTACHED) == 0


def test_the_chooser_of_files_opens_where_there_is_no_camera(seeing: Browser) -> None:
    seeing.evaluate(
        "const photo = document.getElementById('photo');"
        "photo.click = () => { window.chosen = photo.getAttribute('capture') };"
        "navigator.mediaDevices.getUserMedia = async () => { throw new Error('no camera') }"
    )
    seeing.click("#camera")
    seeing.until("window.chosen === 'environment'")
    seeing.evaluate("delete navigator.mediaDevices.getUserMedia")
    assert not seeing.evaluate(OPENED)


def test_an_unanswered_image_stays_in_the_input(seeing: Browser) -> None:
    seeing.answer(COMPLETIONS, 400, '{"error": {"message": "too many pixels"}}')
    give(seeing, "chosen")
    seeing.until(f"{ATTACHED} === 1")
    ask(seeing, "Which colour?")
    ended(seeing)
    seeing.until(f"{FAILURE} === 'too many pixels'")
    assert seeing.evaluate(ATTACHED) == 1
    seeing.excuse()  # Chromium logs the status


@needs_axe
def test_axe_finds_nothing(seeing: Browser) -> None:
    load_axe(seeing)
    give(seeing, "chosen")
    seeing.until(f"{ATTACHED} === 1")
    check(seeing, "a picture to be sent")
    seeing.click("#camera")
    seeing.until(f"{OPENED} && {SEEN}.videoWidth > 0")
    check(seeing, "the picture that the camera sees")
    seeing.click("#viewfinder-close")
    ask(seeing, "Which colour?")
    finished(seeing)
    check(seeing, "a picture that was sent")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_an_image_sticks_out_at_no_width(seeing: Browser, width: int, height: int) -> None:
    seeing.look(width, height)
    give(seeing, "chosen")
    seeing.until(f"{ATTACHED} === 1")
    ask(seeing, "Which colour?")
    finished(seeing)
    assert seeing.evaluate("document.documentElement.scrollWidth") == width


def test_pictures_are_kept_and_in_the_file_of_an_export(browser: Browser, server: Talking) -> None:
    say_red(browser)
    open_chat(browser, server)
    give(browser, "pasted")
    browser.until(f"{ATTACHED} === 1")
    ask(browser, "Which colour?")
    finished(browser)
    reopen(browser, server, 1)
    browser.until("document.querySelectorAll('#list .title').length === 1")
    browser.click("#list .title")
    browser.until("document.querySelector('.message.user canvas')")
    browser.evaluate(
        "URL.createObjectURL = (blob) => { window.file = blob; return 'about:blank#' };"
        "HTMLAnchorElement.prototype.click = () => {}"
    )
    browser.click("#export")
    assert RED in browser.evaluate("window.file.text()")


def test_images_and_sounds_for_a_model_that_takes_none_are_refused(page: Browser) -> None:
    give(page, "dropped")
    page.until(f"{FAILURE} === '{MODEL} does not accept images.'")
    assert page.evaluate(ATTACHED) == 0
    give(page, "dropped", "song.mp3")
    page.until(f"{FAILURE} === '{MODEL} does not accept sounds.'")
    assert page.evaluate(ATTACHED) == 0
    assert page.evaluate("document.getElementById('camera').hidden")
    assert page.evaluate(f"{MICROPHONE}.hidden")


@pytest.mark.long  # tests/e2e/test_image_inputs.py sends what the page sends
def test_a_model_with_images_answers_as_without_the_page(browser: Browser, tmp_path: Path) -> None:
    for library in ("openvino", "torch", "transformers", "PIL"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from tests.llm import seeing as models

    models.build(tmp_path, "smolvlm")
    image = models.image(1)
    cache = ("--llm-option", "kv_cache_memory=64e6")
    with serving(tmp_path, "smolvlm", *cache) as running:
        browser.open(running.url)
        browser.until("document.body.dataset.chat === 'yes'")
        settings(browser, temperature="0", max_tokens="12")
        give(browser, "pasted", body=models.encoded(image))
        browser.until(f"{ATTACHED} === 1")
        record(browser)
        ask(browser, "What is it?")
        ended(browser)
        body = {"messages": models.chat(image, "What is it?"), "model": "smolvlm"}
        body |= {"temperature": 0, "max_tokens": 12}
        url = f"{running.url}{COMPLETIONS}"
        found = httpx.post(url, json=body, timeout=PATIENCE).json()
        assert recorded(browser) == found["choices"][0]["message"]["content"]
        (message, _) = stored(browser)
        assert len(message["images"]) == 1
