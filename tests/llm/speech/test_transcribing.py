"""Language models that transcribe: their texts are those of transformers, asked piece by piece."""

from itertools import zip_longest
from string import ascii_letters

import numpy as np
import pytest
from transformers.models.qwen3_asr import processing_qwen3_asr as library

from mindspore_serving.core.llm_messages import Chunk, Finished, Refused
from mindspore_serving.core.speech_messages import Transcribe, Transcribed
from mindspore_serving.llm.chat.transcription_formats import FORMATS, AnswerText
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.speech import recording
from mindspore_serving.llm.speech.recording import RecordingEvents
from mindspore_serving.llm.speech.transcribing import TranscribingEngine
from tests.llm import listening, transcribers
from tests.llm.sounding import SoundClient
from tests.waiting import eventually

pytestmark = pytest.mark.torch
OPTIONS = {"dtype": "f32", "kv_cache_memory": 16 << 20, "max_audio_seconds": 100}
QWEN, VOXTRAL = (
    FORMATS["Qwen3ASRForConditionalGeneration"],
    FORMATS["VoxtralForConditionalGeneration"],
)
SHORT, LONG = listening.sound(1, 1.3), listening.sound(2, 62.0)


class Model:
    """A model in a directory, its client and what transformers does with it."""

    def __init__(self, parent, kind):
        directory = transcribers.build(parent, kind)
        opened = open_model(directory, "openvino", make_config(OPTIONS))
        row = opened.transcription_format
        self.client = SoundClient(TranscribingEngine(opened, row, lambda: None))
        self.reference = transcribers.Transcriber(directory, kind)

    def events(self, *requests):
        """Events of requests that are sent at once."""
        first, ended = len(self.client.events), len(self.client.ended)
        for request in requests:
            self.client.send(request)
        self.client.wait(ended + len(requests))
        return self.client.events[first:]


@pytest.fixture(scope="module", autouse=True)
def few_tokens():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "MAX_TOKENS", transcribers.MAX_TOKENS)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    parent = tmp_path_factory.mktemp("transcribing")
    models = {kind: Model(parent, kind) for kind in ("qwen3-asr", "voxtral")}
    yield models
    for model in models.values():
        model.client.engine.close()


def text_of(events):
    return "".join(row.text for event in events[:-1] for row in event.segments)


def asked(samples, **fields):
    return Transcribe(file=listening.wav(samples), **fields)


@pytest.mark.parametrize(
    ("kind", "fields", "start"),
    [
        ("qwen3-asr", {}, ""),
        ("qwen3-asr", {"language": "de", "prompt": "Zoe"}, "language German<asr_text>"),
        ("voxtral", {}, "[TRANSCRIBE]"),
        ("voxtral", {"language": "fr"}, "lang:fr[TRANSCRIBE]"),
    ],
)
def test_texts_of_recordings_sent_at_once_are_those_of_transformers(models, kind, fields, start):
    model = models[kind]
    short, long = model.events(asked(SHORT, **fields), asked(LONG, **fields))
    for events, samples in ((short, SHORT), (long, LONG)):
        assert text_of(events) == model.reference.text(samples, start, fields.get("prompt", ""))
        end = events[-1]
        assert (end.language, round(end.seconds, 2)) == (
            fields.get("language", ""), round(len(samples) / listening.RATE, 2),
        )  # fmt: skip
        assert min(end.num_prompt_tokens, end.num_generated_tokens) > 0


def test_deltas_of_pieces_are_sent_in_order():
    started = []
    events = RecordingEvents(asked(LONG), QWEN, lambda piece, request: started.append(piece))
    sent = [events.take("", LONG)]
    first, second, third = started

    def write(piece, text, *, is_last=False):
        ends = [Finished(7, 0, 3)] if is_last else []
        sent.append(events.take("", (piece, [Chunk(0, text, ()), *ends])))

    write(second, "language English<asr_text> It ")
    write(first, "language Ger")
    write(first, "man<asr_text>Guten ")
    write(first, "Tag. ", is_last=True)
    write(second, "rains.", is_last=True)
    write(third, "language None<asr_text>", is_last=True)
    texts = [[row.text for row in each[0].segments] for each in sent[:-1] if each]
    assert texts == [["Guten"], [" Tag.", " It"], [" rains."]]
    assert sent[-1] == [Transcribed("de", 62.0, 0, 9)]


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["你好。", "世界。"], "你好。世界。"), (["안녕", "세계"], "안녕 세계"),
        (["Hello", "世界"], "Hello 世界"), (["", "a", "", "b"], "a b"),
    ],
)  # fmt: skip
def test_texts_of_pieces_are_joined_as_their_scripts_are(texts, joined):
    started = []
    body = asked(listening.sound(2, 100), language="zh")
    events = RecordingEvents(body, QWEN, lambda piece, request: started.append(piece))
    sent = events.take("", listening.sound(2, 100))
    for piece, text in zip_longest(list(started), texts, fillvalue=""):
        sent += events.take("", (piece, [Chunk(0, text, ()), Finished(7, 0, 3)]))
    assert text_of(sent) == joined


def test_silence_has_no_text_and_a_very_short_recording_has_some(models):
    silence = np.zeros(listening.RATE, np.int16)
    silent, brief = models["qwen3-asr"].events(asked(silence), asked(SHORT[:100]))
    assert [type(event) for event in silent] == [Transcribed]
    assert text_of(brief) == models["qwen3-asr"].reference.text(SHORT[:100], "")


@pytest.mark.parametrize(
    ("kind", "request_", "field", "text"),
    [
        ("qwen3-asr", Transcribe(file=b""), "file", "is empty"),
        ("qwen3-asr", Transcribe(file=b"nothing"), "file", "of no known format"),
        ("qwen3-asr", asked(listening.sound(1, 101)), "file", "of more than 100 seconds"),
        ("qwen3-asr", asked(SHORT, language="xx"), "language", "is 'xx', expected one of ar, cs"),
        ("qwen3-asr", asked(SHORT, translates=True), "model", "cannot translate"),
        ("qwen3-asr", asked(SHORT, has_times=True), "response_format", "use json or text"),
        ("qwen3-asr", asked(SHORT, beam_size=5), "beam_size", "is 5, expected 1"),
        ("voxtral", asked(SHORT, prompt="Zoe"), "prompt", "expected none"),
    ],
)
def test_a_request_that_the_model_cannot_answer_is_refused(models, kind, request_, field, text):
    ((refused,),) = models[kind].events(request_)
    assert isinstance(refused, Refused)
    assert (refused.field, text in refused.text) == (field, True)


def test_a_recording_that_is_cancelled_ends_its_pieces(models):
    client = models["qwen3-asr"].client
    engine, before = client.engine, len(client.ended)
    name = client.send(asked(LONG))

    def has_pieces():
        engine.collect()
        return engine.num_open > 1

    eventually(has_pieces)
    engine.cancel(name)
    assert engine.num_open == 0
    (events,) = models["qwen3-asr"].events(asked(SHORT))[-1:]
    assert isinstance(events[-1], Transcribed)
    assert len(client.ended) == before + 1


def test_more_recordings_than_are_allowed_are_refused(models, monkeypatch):
    monkeypatch.setattr("mindspore_serving.llm.speech.transcribing.MAX_WAITING", 2)
    answers = models["qwen3-asr"].events(*[asked(SHORT)] * 4)
    reasons = [events[-1].reason for events in answers if isinstance(events[-1], Refused)]
    assert set(reasons) == {"overloaded"}
    assert any(isinstance(events[-1], Transcribed) for events in answers)


def test_memory_for_recordings_is_limited(models, monkeypatch):
    monkeypatch.setattr("mindspore_serving.llm.speech.transcribing.MAX_SOUND", 1000)
    answers = models["qwen3-asr"].events(*[asked(LONG)] * 3)
    refused = [events[-1] for events in answers if isinstance(events[-1], Refused)]
    assert {event.reason for event in refused} == {"overloaded"}
    assert "too many recordings are in memory" in refused[0].text


# --- forms ---


@pytest.mark.parametrize(
    "answer",
    [
        "language English<asr_text>Good morning.", "language Chinese<asr_text>你好，世界。",
        "language None<asr_text>", "Good morning.", "lang", "language is a word", "",
        f"language {ascii_letters * 2}", "language Klingon<asr_text>nuqneH",
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 5, 200])
def test_an_answer_of_qwen3_asr_is_read_as_its_processor_does(answer, size):
    known = library._parse_single_output(answer)
    read = AnswerText(QWEN, "")
    texts = [read.add(answer[begin : begin + size]) for begin in range(0, len(answer), size)]
    assert "".join(texts) + read.end() == known["transcription"]
    codes = {name: code for code, name in library.LANGUAGE_CODE_TO_NAME.items()}
    assert read.language == codes.get(known["language"], "")


def test_languages_are_those_of_the_processor():
    assert dict(QWEN.languages) == library.LANGUAGE_CODE_TO_NAME
