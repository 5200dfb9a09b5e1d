"""Recordings to texts: what the model is asked, what the client is told; by its client too."""

import json

import openai
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.speech_messages import (
    Heard,
    SpokenSegment,
    SpokenWord,
    Transcribe,
    Transcribed,
)
from tests.frontends.openai.serving import CARD

PATH = "/v1/audio/transcriptions"
WORDS = (SpokenWord(" Good", 0.1, 0.4, 0.9), SpokenWord(" day.", 0.4, 0.9, 0.8))
FIRST = SpokenSegment(" Good day.", 0.0, 1.2, (7, 8), 0.0, 0.2, -0.3, 1.1, 0.01, WORDS)
LAST = SpokenSegment(" Bye --> now", 3661.5, 3662.0, (9,), 3660.0, 0.0, -0.4, 0.9, 0.02)
SAID = [Heard((FIRST,)), Heard((LAST,)), Transcribed("en", 3662.2, 4, 3)]
SOUND = b"RIFF...."


@pytest.fixture
def speech(web):
    """A server whose model "toy" writes SAID of every recording."""
    web.control.card = replace(CARD, can_generate=False, can_transcribe=True, adapters=())
    web.inference.script = lambda request: SAID
    return web


def form(file=SOUND, media="audio/wav", **fields):
    parts = []
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            parts.append(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{item}\r\n')
    body = "".join(parts).encode()
    if file is not None:
        head = 'Content-Disposition: form-data; name="file"; filename="a.wav"'
        body += f"--b\r\n{head}\r\nContent-Type: {media}\r\n\r\n".encode() + file + b"\r\n"
    return body + b"--b--\r\n"


def send(web, path=PATH, body=None, **fields):
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    return web.call("POST", path, form(**fields) if body is None else body, headers)


def test_a_recording_is_answered_with_its_text(speech):
    answer = send(speech, model="toy")
    assert answer.status == 200
    usage = {"type": "duration", "seconds": 3663}
    assert answer.json == {"text": "Good day. Bye --> now", "usage": usage}
    assert speech.sent == Transcribe(file=SOUND)


def test_fields_reach_the_model(speech):
    fields = {
        "language": "DE", "prompt": "names", "hotwords": "Zoe", "temperature": "0.5",
        "response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"],
    }  # fmt: skip
    assert send(speech, **fields).status == 200
    assert speech.sent == Transcribe(
        file=SOUND, language="de", prompt="Zoe names", temperature=0.5, has_times=True,
        has_words=True,
    )  # fmt: skip


def test_a_translation_is_asked_for_by_its_route(speech):
    answer = send(speech, "/v1/audio/translations", response_format="verbose_json")
    assert answer.json["task"] == "translate"
    assert speech.sent == Transcribe(file=SOUND, translates=True, has_times=True)


def test_texts_of_all_formats(speech):
    assert send(speech, response_format="text").body == b"Good day. Bye --> now\n"
    assert send(speech, response_format="srt").body.decode() == (
        "1\n00:00:00,000 --> 00:00:01,200\nGood day.\n\n"
        "2\n01:01:01,500 --> 01:01:02,000\nBye -> now\n"
    )
    answer = send(speech, response_format="vtt")
    assert answer.headers["content-type"].startswith("text/vtt")
    assert answer.body.decode() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.200\nGood day.\n\n"
        "01:01:01.500 --> 01:01:02.000\nBye -> now\n"
    )


def test_verbose_json_has_segments_and_words_as_asked_for(speech):
    def answer(*wanted):
        kinds = {"timestamp_granularities[]": list(wanted)} if wanted else {}
        return send(speech, response_format="verbose_json", **kinds).json

    whole = answer()
    assert (whole["task"], whole["language"], whole["duration"]) == ("transcribe", "en", 3662.2)
    assert "words" not in whole
    assert whole["segments"][1] == {
        "id": 1, "seek": 366_000, "start": 3661.5, "end": 3662.0, "text": " Bye --> now",
        "tokens": [9], "temperature": 0.0, "avg_logprob": -0.4, "compression_ratio": 0.9,
        "no_speech_prob": 0.02,
    }  # fmt: skip
    words = answer("word")
    assert "segments" not in words
    assert words["words"][0] == {"word": "Good", "start": 0.1, "end": 0.4, "probability": 0.9}
    assert {"segments", "words"} <= {*answer("word", "segment")}


def test_a_stream_has_a_delta_for_each_segment(speech):
    lines = send(speech, stream="true").body.decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [event["type"] for event in events] == [
        "transcript.text.delta", "transcript.text.delta", "transcript.text.done",
    ]  # fmt: skip
    assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_refusal_of_the_model_is_an_error_of_the_field(speech, is_stream):
    refused = Refused("input", "file is truncated: 7 bytes are missing", field="file")
    speech.inference.script = lambda request: [refused]
    answer = send(speech, stream="true" if is_stream else "false")
    assert answer.status == 400
    assert answer.json["error"]["param"] == "file"
    assert "is truncated" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"file": None}, "file", "is missing"),
        ({"media": "text/html"}, "file", "has the type 'text/html', expected audio"),
        ({"media": "image/png"}, "file", "has the type 'image/png'"),
        ({"temperature": "2"}, "temperature", "<= 1.0"),
        ({"temperature": "warm"}, "temperature", "expected a number"),
        ({"response_format": "xml"}, "response_format", "expected one of json, text, srt"),
        ({"stream": "maybe"}, "stream", "expected true or false"),
        ({"stream": "true", "response_format": "srt"}, "stream", "take json"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "needs response_format"),
        (
            {"timestamp_granularities[]": "day", "response_format": "verbose_json"},
            "timestamp_granularities",
            "expected segment or word",
        ),
        ({"prompt": "x" * 20_000}, "prompt", "length <= 10000"),
        ({"langage": "en"}, "langage", "did you mean language"),
    ],
)
def test_a_wrong_field_is_named(speech, fields, param, problem):
    answer = send(speech, **fields)
    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"] == param
    assert problem in answer.json["error"]["message"]


def test_unknown_fields_are_named_in_a_header(speech):
    answer = send(speech, colour="red", chunking_strategy="auto")
    assert (answer.status, answer.headers["x-ignored-fields"]) == (200, "colour")


def test_other_models_and_other_bodies_are_refused(speech, web):
    assert send(speech, body=b"{}").status == 400
    assert send(speech, model="other").status == 404
    web.control.card = CARD
    answer = send(web, model="toy")
    assert answer.status == 400
    assert "does not transcribe speech" in answer.json["error"]["message"]


def test_a_file_over_the_limit_is_refused(speech):
    assert send(speech, file=b"RIFF" + bytes(2 << 20)).status == 413


def test_a_model_of_speech_is_listed_as_taking_audio(speech):
    listed, *_ = speech.call("GET", "/v1/models").json["data"]
    assert listed["input_modalities"] == ["audio"]


def test_openais_client_reads_answers_and_streams(speech):
    with openai.OpenAI(base_url=speech.url, api_key="none", max_retries=0) as client:
        create = client.audio.transcriptions.create
        file = ("a.wav", SOUND)
        assert create(model="toy", file=file).text == "Good day. Bye --> now"
        verbose = create(
            model="toy", file=file, response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )  # fmt: skip
        assert [word.word for word in verbose.words] == ["Good", "day."]
        assert verbose.segments[0].end == 1.2
        assert create(model="toy", file=file, response_format="vtt").startswith("WEBVTT")
        events = list(create(model="toy", file=file, stream=True))
        assert events[-1].text == "Good day. Bye --> now"
        with pytest.raises(openai.BadRequestError, match="expected one of json"):
            create(model="toy", file=file, response_format="xml")
        with pytest.warns(DeprecationWarning, match="deprecated"):
            translated = client.audio.translations.create(model="toy", file=file)
        assert translated.text == "Good day. Bye --> now"
