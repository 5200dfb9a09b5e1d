"""The engine of voices: turns of texts, those that leave, and those that are refused."""

import threading

import numpy as np
import pytest

from mindspore_serving.core.llm_messages import Generate, Refused
from mindspore_serving.core.speech_messages import Speak, SpeechEnded, Spoken
from mindspore_serving.errors import StageFailed, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.voices.engine import VoiceEngine
from mindspore_serving.llm.voices.runner import trim
from tests.llm.sounding import SoundClient
from tests.llm.voices.tiny import SAMPLES, write_kokoro, write_piper
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.onnx


class Client(SoundClient):
    """A client of the voices at `path`."""

    def __init__(self, path, **options):
        super().__init__(VoiceEngine(str(path), EngineConfig(**options), lambda: None))

    def send(self, text, **fields):
        is_text = isinstance(text, str)
        return super().send(Speak(text=text, format="wav", **fields) if is_text else text)

    def samples(self, number):
        sound = b"".join(row.sound for row in self.events[number] if isinstance(row, Spoken))
        return np.frombuffer(sound[44:], np.int16)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_piper(tmp_path_factory.mktemp("voice"))


@pytest.fixture
def client(path):
    client = Client(path, max_num_waiting=6, max_speech_characters=2000)
    yield client
    client.engine.close()


class Gate:
    """Holds the first sentence, which has `arrived`, until it is `opened`."""

    def __init__(self, engine):
        self._speak = engine._runner.speak
        self.arrived, self.opened = threading.Event(), threading.Event()
        engine._runner.speak = self.speak

    def speak(self, *arguments):
        self.arrived.set()
        self.opened.wait(PATIENCE)
        return self._speak(*arguments)


def num_queued(engine):
    return len(engine._texts)


def test_each_sentence_is_sent_with_its_samples(client):
    client.send("ab. cd. e")
    client.wait(1)
    *sounds, _, end = client.events[0]
    assert [type(event) for event in sounds] == [Spoken] * 3
    ids = [[1, 0, 5, 0, 6, 0, 4, 0, 2], [1, 0, 7, 0, 8, 0, 4, 0, 2], [1, 0, 9, 0, 2]]
    expected = [np.tile(row, SAMPLES) / max(row) for row in ids]
    assert np.abs(client.samples(0) - np.concatenate(expected) * 32767).max() <= 1
    seconds = sum(map(len, expected)) / 22_050
    assert end == SpeechEnded(seconds, 7)


def test_a_short_text_passes_a_long_text(client):
    gate = Gate(client.engine)
    client.send("a. " * 300)
    eventually(gate.arrived.is_set)
    client.send("b. b.")
    eventually(lambda: num_queued(client.engine) == 1)
    gate.opened.set()
    client.wait(2)
    assert client.ended == [1, 0]
    assert client.order[:4] == [0, 1, 0, 1]


def test_a_text_that_is_cancelled_is_spoken_no_further(client):
    gate = Gate(client.engine)
    names = [client.send("a. " * 300) for _ in range(2)]
    eventually(lambda: gate.arrived.is_set() and num_queued(client.engine) == 1)
    for name in names:
        client.engine.cancel(name)
    gate.opened.set()
    client.send("b")
    client.wait(1)
    assert client.ended == [2]
    assert client.events[0] == client.events[1] == []
    assert client.engine.stats.num_steps <= 2 + 1
    assert client.engine.num_open == 0


def test_an_error_of_the_model_ends_its_text_alone(client):
    speak = client.engine._runner.speak

    def fail(piece, *arguments):
        if "x" in piece:
            raise StageFailed("no memory")
        return speak(piece, *arguments)

    client.engine._runner.speak = fail
    client.send("a. x. a.")
    client.send("a. a.")
    client.wait(2)
    assert isinstance(client.events[0][-1], StageFailed)
    assert isinstance(client.events[1][-1], SpeechEnded)


@pytest.mark.parametrize(
    ("text", "fields", "field", "problem"),
    [
        ("", {}, "text", "is empty"),
        (" \n", {}, "text", "is empty"),
        ("...", {}, "text", "nothing to speak"),
        ("жук", {}, "text", "words of its language"),
        ("a" * 2001, {}, "text", "has 2,001 characters, expected at most 2,000"),
        ("a\0", {}, "text", "U+0000"),
        ("Hi", {"voice": "alloy"}, "voice", "is 'alloy', expected one of tiny"),
        ("Hi", {"speed": 0.2}, "speed", "is 0.2, expected 0.25 to 4"),
        ("Hi", {"speed": float("nan")}, "speed", "expected 0.25 to 4"),
        ("Hi", {"language": "de"}, "language", "is 'de'"),
        (Speak(text="Hi", format="midi"), {}, "format", "expected one of mp3"),
        (Generate(prompt="Hi"), {}, "model", "this model synthesizes speech and cannot generate"),
    ],
)
def test_a_wrong_request_is_refused(client, text, fields, field, problem):
    client.send(text, **fields)
    client.wait(1)
    (refused,) = client.events[0]
    assert isinstance(refused, Refused)
    assert (refused.field, problem in refused.text) == (field, True), refused.text


def test_too_many_texts_are_refused(client):
    gate = Gate(client.engine)
    for _ in range(9):
        client.send("a")
    gate.opened.set()
    client.wait(9)
    refused = [events[0] for events in client.events if isinstance(events[0], Refused)]
    assert [event.reason for event in refused] == ["overloaded"] * 3


def test_speakers_and_speeds_reach_the_model(tmp_path):
    client = Client(write_piper(tmp_path, num_speakers=3, speaker_id_map={"a": 1, "b": 2}))
    try:
        assert client.engine.card.voices == ("a", "b")
        client.send("ab", voice="b")
        client.wait(1)
        assert client.samples(0).max() == 32767
    finally:
        client.engine.close()


@pytest.mark.parametrize(("speed", "is_whole"), [(1, False), (6, True)])  # FLOAT, INT32
def test_models_of_kokoro_get_the_style_of_the_length(tmp_path, speed, is_whole):
    client = Client(write_kokoro(tmp_path, name="input_ids", speed=speed))
    try:
        engine = client.engine
        samples = engine._runner.speak(list("ab"), "bm_two", 2.0)
        assert samples[:4] == pytest.approx(np.array([0, 1, 2, 0]) * 2e-5 * 2)
        assert engine._runner.has_whole_speeds == is_whole
        client.send("a", speed=1.5, language="en-us")
        client.wait(1)
        assert isinstance(client.events[0][0], Refused) == is_whole
    finally:
        client.engine.close()


@pytest.mark.parametrize("option", [{"max_num_seqs": 2}, {"dtype": "f32"}])
def test_options_of_other_models_are_refused(path, option):
    with pytest.raises(StartError, match="voices have no option"):
        Client(path, **option)


def test_silence_around_sounds_is_cut_but_for_a_moment():
    samples = np.zeros(10_000, np.float32)
    samples[4000:5000] = 0.5
    assert np.array_equal(trim(samples, 1000), samples[3950:5299])
    assert len(trim(samples[:100], 1000)) == 100
