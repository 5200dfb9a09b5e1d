"""Texts to sound: requests to the model, and its sound as a file and as events."""

import base64
import http.client
import json

import openai
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.speech_messages import Speak, SpeechEnded, Spoken
from tests.frontends.openai.serving import CARD

PATH = "/v1/audio/speech"
SOUND = [Spoken(b"first "), Spoken(b""), Spoken(b"last"), SpeechEnded(2.5, 9)]
HELLO = {"model": "toy", "input": "Hello"}


@pytest.fixture
def voice(web):
    """A server whose model "toy" speaks SOUND of every text."""
    voices = {"voices": ("ann", "bob"), "languages": ("en-us",)}
    web.control.card = replace(CARD, can_generate=False, can_speak=True, adapters=(), **voices)
    web.inference.script = lambda request: SOUND
    return web


def send(web, **fields):
    return web.call("POST", PATH, {**HELLO, **fields})


def test_the_sound_of_a_text_is_a_file(voice):
    answer = send(voice)
    assert (answer.status, answer.body) == (200, b"first last")
    assert answer.headers["content-type"] == "audio/mpeg"
    assert voice.sent == Speak(text="Hello")


def test_fields_reach_the_model(voice):
    fields = {"voice": "bob", "response_format": "opus", "speed": 1.5, "language": "EN-US"}
    answer = send(voice, **fields)
    assert answer.headers["content-type"] == "audio/ogg"
    assert voice.sent == Speak(
        text="Hello", voice="bob", language="en-us", format="opus", speed=1.5
    )
    send(voice, voice={"id": "ann"}, instructions="", user="someone")
    assert voice.sent == Speak(text="Hello", voice="ann")


def test_events_have_the_sound_in_base64(voice):
    answer = send(voice, stream_format="sse", response_format="pcm")
    lines = answer.body.decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == b"first last"
    usage = {"input_tokens": 9, "output_tokens": 0, "total_tokens": 9}
    assert done == {"type": "speech.audio.done", "usage": usage}


def test_voices_are_listed(voice):
    known = {"voices": ["ann", "bob"], "languages": ["en-us"]}
    assert voice.call("GET", "/v1/audio/voices").json == known
    assert voice.call("GET", "/v1/audio/voices?model=toy").json == known
    assert voice.call("GET", "/v1/audio/voices?model=other").status == 404
    listed, *_ = voice.call("GET", "/v1/models").json["data"]
    assert listed["output_modalities"] == ["audio"]


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_a_refusal_of_the_model_is_an_error_of_the_field(voice, stream_format):
    refused = Refused("input", "text is empty, expected words to speak", field="text")
    voice.inference.script = lambda request: [refused]
    answer = send(voice, stream_format=stream_format)
    assert answer.status == 400
    assert answer.json["error"]["param"] == "input"
    assert answer.json["error"]["message"] == "input is empty, expected words to speak"


def test_a_model_that_fails_later_breaks_the_file(voice):
    voice.inference.script = lambda request: [Spoken(b"first"), Refused("input", "no memory")]
    with pytest.raises(http.client.IncompleteRead):
        send(voice)
    events = send(voice, stream_format="sse").body.decode()
    assert "speech.audio.delta" in events
    assert "no memory" in events.split("\n\n")[1]


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"response_format": "midi"}, "response_format", "expected one of mp3, opus, aac"),
        ({"stream_format": "wav"}, "stream_format", "expected audio or sse"),
        ({"instructions": "shout"}, "instructions", "is not supported"),
        ({"speed": "fast"}, "speed", "expected a number"),
        ({"input": 5}, "input", "expected a string"),
        ({"voice": 5}, "voice", "expected"),
        ({"imput": "Hello"}, None, ""),
    ],
)
def test_a_wrong_field_is_named(voice, fields, param, problem):
    body = {**HELLO, **fields}
    if "imput" in fields:
        body.pop("input")
    answer = voice.call("POST", PATH, body)
    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"] == (param or "imput")
    assert (problem or "did you mean input") in answer.json["error"]["message"]


def test_other_models_are_refused(voice, web):
    assert send(voice, model="other").status == 404
    chat = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}
    answer = voice.call("POST", "/v1/chat/completions", chat)
    assert "synthesizes speech and cannot generate" in answer.json["error"]["message"]
    web.control.card = CARD
    answer = send(web)
    assert answer.status == 400
    assert "does not synthesize speech" in answer.json["error"]["message"]


def test_openais_client_reads_files_and_events(voice):
    with openai.OpenAI(base_url=voice.url, api_key="none", max_retries=0) as client:
        create = client.audio.speech.create
        assert create(**HELLO, voice="ann").content == b"first last"
        streaming = client.audio.speech.with_streaming_response
        with streaming.create(**HELLO, voice="ann", response_format="wav") as response:
            assert b"".join(response.iter_bytes()) == b"first last"
        with pytest.raises(openai.BadRequestError, match="expected one of mp3"):
            create(**HELLO, voice="ann", response_format="midi")
