"""Sounds in chats of every protocol that has them, by real clients.

Answers are those of transformers, and files that cannot be used are refused in the form of the
protocol, by the field of the request.
"""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest
import tokenizers
from google import genai
from google.genai import types

from tests.e2e.harness import config, serving
from tests.e2e.test_media_inputs import COUNT, INSIDE, TEXT, chat, generate, respond, text
from tests.llm import chatty, clips, listening, seeing
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

KIND = "qwen2.5-omni"
OPTIONS = {
    "dtype": "f32", "kv_cache_memory": 8 << 20, "preparation_timeout": PATIENCE,
    "image_hosts": ["127.0.0.1"], "max_audios": 2, "max_audio_seconds": 4.0,
}  # fmt: skip
SOUND = listening.sound(1, 0.61)
WAV = listening.wav(SOUND)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sounds")
    listening.build(directory, KIND)
    chatty.build(directory)
    return directory


@pytest.fixture(scope="module")
def url(directory):
    models = [config(directory, KIND, llm_options=OPTIONS), config(directory, "chatty")]
    with serving(directory, *models) as served:
        yield f"http://127.0.0.1:{served.http}"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def gemini(url):
    with genai.Client(api_key="none", http_options={"base_url": url}) as client:
        yield client


@pytest.fixture(scope="module")
def expected(directory):
    """Return the answer of transformers to the sound and the text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / KIND / "tokenizer.json"))
    count = (((61 - 1) // 2 + 1) - 2) // 2 + 1  # vectors of 61 frames of 10 ms
    mark = seeing.MARKS[listening.SOUND]
    prompt = f"user:<img>{mark * count}</img>{TEXT}assistant:"
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    tokens = listening.Reference(directory / KIND, KIND).greedy(ids, [SOUND], COUNT)
    return tokenizer.decode(tokens)


def hear(client, *parts):
    return chat(client, *parts, text(TEXT), model=KIND)


def test_an_answer_to_a_sound_is_that_of_transformers(client, gemini, expected):
    assert hear(client, listening.part(SOUND)) == expected
    assert hear(client, url_part(clips.uri(WAV, "audio/wav"))) == expected
    part = text(TEXT, "input_text")
    assert respond(client, listening.part(SOUND), part, model=KIND) == expected
    part = types.Part.from_bytes(data=WAV, mime_type="audio/wav")
    assert generate(gemini, part, types.Part(text=TEXT), model=KIND) == expected


def test_a_sound_is_told_by_its_content_and_not_by_its_format(client, expected):
    flac = listening.encoded(SOUND, "flac", "flac")
    for form in ("wav", "mp3", "flac", ""):
        assert hear(client, listening.part(flac, form)) == expected
    assert hear(client, listening.part(listening.encoded(SOUND, "webm", "libopus"), "webm"))


def test_a_sound_is_fetched_from_an_allowed_host(client, expected):
    class Site(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(WAV)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.01,))
        thread.start()
        try:
            address = f"http://127.0.0.1:{site.server_port}/a.wav"
            assert hear(client, url_part(address)) == expected
        finally:
            site.shutdown()
            thread.join(PATIENCE)


def url_part(url):
    return {"type": "audio_url", "audio_url": {"url": url}}


def header(**changes):
    """A WAV file whose header claims other channels, samples per second or bytes."""
    file = bytearray(WAV)
    offsets = {"channels": (22, 2), "rate": (24, 4), "size": (40, 4)}
    for name, value in changes.items():
        at, width = offsets[name]
        file[at : at + width] = value.to_bytes(width, "little")
    return bytes(file)


DATA = "input_audio.data"
BAD_PARTS = {  # of a chat: the part, the field in it, and what the error says
    "base64": (listening.part(b"") | {"input_audio": {"data": "@@", "format": "wav"}}, DATA,
               "no valid base64"),
    "nothing": (listening.part(b""), DATA, "is missing"),
    "unknown": (listening.part(b"RIFX and more"), DATA, "of no known format, expected wav, mp3"),
    "playlist": (listening.part(b"#EXTM3U\nfile:///etc/passwd"), DATA, "of no known format"),
    "truncated": (listening.part(WAV[:900]), DATA, "is truncated"),
    "channels": (listening.part(header(channels=900)), DATA, "900 channels, expected 1 to 8"),
    "rate": (listening.part(header(rate=4_000_000)), DATA, "4,000,000 samples per second"),
    "hours": (listening.part(header(rate=1000)), DATA, "more than 4 seconds"),
    "too short": (listening.part(listening.sound(1, 0.01)), DATA, "is too short for the model"),
    "no sound": (listening.part(header(size=0)), DATA, "has no sound"),
    "image": (listening.part(base64.b64decode(seeing.encoded(seeing.image(1)))), DATA,
              "of no known format"),
    "url": (url_part(INSIDE), "audio_url", "not among the allowed image_hosts"),
    "local file": (url_part("file:///etc/passwd"), "audio_url", "no http or https URL"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PARTS)
def test_bad_sounds_are_refused_by_their_field(client, name):
    part, field, told = BAD_PARTS[name]
    with pytest.raises(openai.BadRequestError, match=told) as refused:
        hear(client, part)
    assert refused.value.param == f"messages[0].content[0].{field}"


def test_more_sounds_than_allowed_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="have 3 audios, expected at most 2"):
        hear(client, *[listening.part(SOUND)] * 3)


def test_bad_sounds_of_other_protocols_are_refused_by_their_field(client, gemini):
    with pytest.raises(openai.BadRequestError, match="of no known format") as refused:
        respond(client, listening.part(b"x"), model=KIND)
    assert refused.value.param == f"input[0].content[0].{DATA}"
    part = types.Part.from_bytes(data=b"x", mime_type="audio/wav")
    with pytest.raises(genai.errors.ClientError, match="of no known format") as refused:
        generate(gemini, part, model=KIND)
    assert "contents[0].parts[0].inlineData.data " in str(refused.value)


def test_a_model_that_does_not_hear_says_so(client, gemini):
    with pytest.raises(openai.BadRequestError, match="the model reads no images or audio"):
        chat(client, listening.part(SOUND), model="chatty")
    part = types.Part.from_bytes(data=WAV, mime_type="audio/wav")
    with pytest.raises(genai.errors.ClientError, match="the model reads no audio"):
        generate(gemini, part, model="chatty")


def test_a_model_that_hears_says_so(client):
    assert client.models.retrieve(KIND).input_modalities == ["text", "image", "audio"]


def test_the_worker_answers_after_all_bad_sounds(client, expected):
    assert hear(client, listening.part(SOUND)) == expected
