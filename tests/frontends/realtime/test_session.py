"""Sessions of /v1/realtime: events by OpenAI's client, turns by the real model of voices.

The model of speech is the test's own; tests/e2e/test_realtime.py has Whisper.
"""

import base64
import json

import numpy as np
import openai
import pytest
import websockets.sync.client
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.resampling import resample
from mindspore_serving.core.speech_messages import Heard, SpokenSegment, Transcribe, Transcribed
from mindspore_serving.frontends.realtime import session as sessions
from mindspore_serving.frontends.realtime import turns
from mindspore_serving.llm.sounds.decoding import read_sound
from tests.frontends.openai.serving import CARD, serving
from tests.published import file_of
from tests.speaking import samples_of, spoken
from tests.waiting import PATIENCE, eventually

# OpenAI's client connects without a `with` block.
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
RATE = 24_000
SAID = [
    Heard((SpokenSegment(" Good day.", 0.0, 1.2, (7, 8), 0.0, 0.0, -0.3, 1.1, 0.01),)),
    Heard((SpokenSegment(" Bye.", 1.2, 2.0, (9,), 1.2, 0.0, -0.4, 0.9, 0.02),)),
    Transcribed("en", 2.004, 4, 3),
]
SILENCE = np.zeros(RATE, np.int16)
TEXT = "conversation.item.input_audio_transcription"
BUFFER = "input_audio_buffer"


@pytest.fixture(scope="module")
def speech():
    """A server whose model "toy" writes SAID of every recording."""
    file_of("silero_vad", "data/silero_vad.onnx")
    with serving() as web:
        web.control.card = replace(CARD, can_generate=False, can_transcribe=True, adapters=())
        web.inference.script = lambda request: SAID
        yield web


@pytest.fixture(scope="module")
def sentence():
    """A spoken sentence, at the rate of sessions."""
    samples = samples_of(spoken("Good morning everyone, the weather is very nice today."))
    return (resample(samples.astype(np.float32), 22_050, RATE)).astype(np.int16)


@pytest.fixture
def connect(speech):
    """A function that opens a session of OpenAI's client."""
    client = openai.OpenAI(base_url=speech.url, api_key="none", max_retries=0)
    opened = []

    def open_session(**query):
        manager = client.realtime.connect(extra_query={"intent": "transcription", **query})
        opened.append(manager.enter())
        assert opened[-1].recv().type == "session.created"
        return opened[-1]

    with client:
        yield open_session
        for connection in opened:
            connection.close()


def coded(samples):
    return base64.b64encode(np.asarray(samples).tobytes()).decode()


def append(connection, samples, size=2400):
    """Send sound as a microphone does."""
    for begin in range(0, len(samples), size):
        connection.input_audio_buffer.append(audio=coded(samples[begin : begin + size]))


def until(connection, kind):
    """The events up to one of a kind."""
    events = []
    while not events or events[-1].type != kind:
        events.append(connection.recv())
    return events


def update(connection, **settings):
    connection.session.update(
        session={"type": "transcription", "audio": {"input": settings}}  # type: ignore[arg-type]
    )
    return connection.recv()


def manual(connection):
    return update(connection, turn_detection=None)


def error_of(connection, **event):
    """The error that answers an event."""
    connection.send({"event_id": "mine", **event})
    answer = connection.recv()
    assert (answer.type, answer.error.event_id) == ("error", "mine")
    return answer.error


def test_a_new_session_has_the_defaults_of_the_protocol(speech):
    with _plain(speech) as socket:
        created = json.loads(socket.recv(PATIENCE))
    assert created["type"] == "session.created"
    assert created["session"]["id"].startswith("sess_")
    assert created["session"]["audio"]["input"] == {
        "format": {"type": "audio/pcm", "rate": RATE},
        "noise_reduction": None,
        "transcription": {"model": None, "language": None, "prompt": None, "keywords": None},
        "turn_detection": {
            "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300,
            "silence_duration_ms": 500,
        },
    }  # fmt: skip


def _plain(speech, query="intent=transcription", **options):
    url = f"ws://127.0.0.1:{speech.port}/v1/realtime?{query}"
    return websockets.sync.client.connect(url, open_timeout=PATIENCE, **options)


def test_a_spoken_turn_is_written_down(speech, connect, sentence):
    connection, gap = connect(), SILENCE
    updated = update(connection, transcription={"model": "toy", "language": "EN", "prompt": "Zoe"})
    assert updated.session.audio.input.transcription.prompt == "Zoe"
    append(connection, np.concatenate([gap, sentence, gap, sentence, gap]))
    events = until(connection, f"{TEXT}.completed")
    rest = until(connection, f"{TEXT}.completed")
    first = [event for event in events if getattr(event, "item_id", "") == events[0].item_id]
    kinds = [
        f"{BUFFER}.speech_started", f"{BUFFER}.speech_stopped", f"{BUFFER}.committed",
        f"{TEXT}.delta", f"{TEXT}.delta", f"{TEXT}.completed",
    ]  # fmt: skip
    assert [event.type for event in first] == kinds
    started, stopped = first[:2]
    length = len(sentence) * 1000 / RATE
    assert 600 <= started.audio_start_ms <= 1100  # with 300 ms before the speech
    assert abs(stopped.audio_end_ms - (1000 + length + 500)) < 400
    assert [event.delta for event in first[3:5]] == ["Good day.", " Bye."]
    assert first[-1].transcript == "Good day. Bye."
    assert first[-1].usage.seconds == 2.004
    both = [event for event in [*events, *rest] if event.type == f"{BUFFER}.committed"]
    assert both[1].previous_item_id == both[0].item_id
    items = [event.item for event in [*events, *rest] if event.type == "conversation.item.added"]
    assert [item.id for item in items] == [event.item_id for event in both]
    assert len({event.event_id for event in [*events, *rest]}) == len([*events, *rest])
    sent = speech.inference.calls[-2].sent
    assert (sent.language, sent.prompt) == ("en", "Zoe")
    recording = read_sound(sent.file, 100.0)
    assert abs(len(recording) / 16 - (stopped.audio_end_ms - started.audio_start_ms)) < 2


def test_silence_makes_no_turn_and_is_not_kept(speech, connect):
    connection = connect()
    append(connection, np.tile(SILENCE, 10), RATE)
    connection.input_audio_buffer.commit()
    assert connection.recv().type == f"{BUFFER}.committed"  # and no speech before
    until(connection, f"{TEXT}.completed")
    assert 300 <= len(samples_of(speech.sent.file)) * 1000 / RATE < 400  # before a turn


def test_a_client_may_end_turns_itself(speech, connect, sentence):
    connection = connect()
    assert manual(connection).session.audio.input.turn_detection is None
    problem = error_of(connection, type=f"{BUFFER}.commit")
    assert problem.message == "the buffer has 0 ms of sound, expected at least 100 ms"
    append(connection, sentence, 100_000)
    connection.input_audio_buffer.commit()
    kinds = [event.type for event in until(connection, f"{TEXT}.completed")]
    assert kinds[:3] == [
        f"{BUFFER}.committed", "conversation.item.added", "conversation.item.done",
    ]  # fmt: skip
    recording = read_sound(speech.sent.file, 100.0)
    assert abs(len(recording) - len(sentence) * 2 / 3) < 2
    append(connection, sentence)
    connection.input_audio_buffer.clear()
    assert connection.recv().type == f"{BUFFER}.cleared"
    assert "has 0 ms" in error_of(connection, type=f"{BUFFER}.commit").message


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_g711_is_decoded_as_ffmpeg_does(speech, connect, law):
    av = pytest.importorskip("av")
    codec = av.CodecContext.create(f"pcm_{law}", "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    everything = bytes(range(256)) * 8
    (frame,) = codec.decode(av.Packet(everything))
    connection = connect()
    name = "audio/pcmu" if law == "mulaw" else "audio/pcma"
    updated = update(connection, format={"type": name}, turn_detection=None)
    assert updated.session.audio.input.format.type == name
    connection.input_audio_buffer.append(audio=base64.b64encode(everything).decode())
    connection.input_audio_buffer.commit()
    until(connection, f"{TEXT}.completed")
    assert np.array_equal(samples_of(speech.sent.file), frame.to_ndarray()[0])


def test_turns_are_detected_in_the_sound_of_telephones(connect, sentence):
    narrow = resample(sentence.astype(np.float32), RATE, 8000).astype(np.int64)
    size = np.abs(narrow).clip(0, 32_635) + 132  # G.711, by its formula
    exponent = np.floor(np.log2(size)).astype(int) - 7
    code = (exponent << 4) | ((size >> (exponent + 3)) & 15)
    bytes_ = (~(code | np.where(narrow < 0, 128, 0)) & 255).astype(np.uint8)
    gap = np.full(8000, 255, np.uint8)
    connection = connect()
    update(connection, format={"type": "audio/pcmu"})
    append(connection, np.concatenate([gap, bytes_, gap]), 800)
    kinds = [event.type for event in until(connection, f"{TEXT}.completed")]
    assert kinds[:2] == [f"{BUFFER}.speech_started", f"{BUFFER}.speech_stopped"]


WRONG = {
    "an unknown event": ({"type": "response.create"}, "type", "expected one of session.update"),
    "no type": ({}, "type", "is missing"),
    "an unknown field": ({"type": f"{BUFFER}.clear", "x": 1}, None, "unknown field `x`"),
    "no sound": ({"type": f"{BUFFER}.append"}, "audio", "is missing"),
    "sound that is no text": ({"type": f"{BUFFER}.append", "audio": 5}, "audio", "a string"),
    "no base64": ({"type": f"{BUFFER}.append", "audio": "!"}, "audio", "is no base64"),
    "half a sample": ({"type": f"{BUFFER}.append", "audio": "YQ=="}, "audio", "has 1 bytes"),
    "a voice conversation": (
        {"type": "session.update", "session": {"type": "realtime", "instructions": "Hi"}},
        "session.type", "is 'realtime', expected 'transcription'",
    ),
    "an unknown setting": (
        {"type": "session.update", "session": {"type": "transcription", "voice": "alloy"}},
        "session", "unknown field `voice`",
    ),
    "a threshold": (
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}},
            },
        },
        "session.audio.input.turn_detection.threshold", "is 2, expected a number <= 1",
    ),
    "semantic turns": (
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}},
            },
        },
        "session.audio.input.turn_detection.type", "semantic_vad",
    ),
    "an unknown format": (
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"format": {"type": "audio/opus"}}},
            },
        },
        "session.audio.input.format.type", "expected one of audio/pcm, audio/pcmu, audio/pcma",
    ),
    "another rate": (
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}},
            },
        },
        "session.audio.input.format.rate", "is 16000, expected 24000",
    ),
    "log-probabilities": (
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "include": ["item.input_audio_transcription.logprobs"],
            },
        },
        "session.include", "expected nothing",
    ),
    "an unknown model": (
        {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"transcription": {"model": "whisper-1"}}},
            },
        },
        "model", "The model 'whisper-1' does not exist",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("event", "field", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_event_is_answered_and_the_session_goes_on(connect, event, field, text):
    connection = connect()
    problem = error_of(connection, **event) if event else _untyped(connection)
    assert (problem.type, problem.param) == ("invalid_request_error", field)
    assert text in problem.message
    assert manual(connection).type == "session.updated"


def _untyped(connection):
    connection.send_raw("{}")
    return connection.recv().error


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"binary", "the message is binary"),
        ("[" * 100_000, "nested too deeply"),
        ("no json", "the body is not JSON"),
    ],
)
def test_a_message_that_is_no_event_is_answered(speech, message, text):
    with _plain(speech) as socket:
        socket.recv(PATIENCE)
        socket.send(message)
        assert text in json.loads(socket.recv(PATIENCE))["error"]["message"]
        socket.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(socket.recv(PATIENCE))["type"] == f"{BUFFER}.cleared"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("intent=conversation", "intent is 'conversation', expected 'transcription'"),
        ("model=nothing", "The model 'nothing' does not exist"),
        ("model=vectors", "does not transcribe speech"),
    ],
)
def test_a_session_that_cannot_be_is_refused_in_http(speech, query, text):
    with pytest.raises(websockets.exceptions.InvalidStatus) as raised:
        _plain(speech, query)
    response = raised.value.response
    assert response.status_code in (400, 404)
    assert text in json.loads(response.body)["error"]["message"]


def test_a_turn_that_fails_is_told_and_the_session_goes_on(speech, connect, sentence):
    connection = connect()
    manual(connection)
    speech.inference.script = lambda request: [Refused("overloaded", "too many recordings")]
    append(connection, sentence, 100_000)
    connection.input_audio_buffer.commit()
    failed = until(connection, f"{TEXT}.failed")[-1]
    speech.inference.script = lambda request: SAID
    assert (failed.error.code, failed.error.message) == (
        "rate_limit_exceeded", "too many recordings",
    )  # fmt: skip
    append(connection, sentence, 100_000)
    connection.input_audio_buffer.commit()
    assert until(connection, f"{TEXT}.completed")


def test_turns_that_wait_have_a_limit_and_end_with_the_session(speech, connect, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_WAITING", 2)
    connection = connect()
    manual(connection)
    speech.inference.script = lambda request: None
    before = len(speech.inference.calls)
    for _ in range(3):
        append(connection, SILENCE, RATE)
        connection.input_audio_buffer.commit()
    failed = until(connection, f"{TEXT}.failed")[-1]
    assert failed.error.message == "2 turns are not written down yet; speak later"
    calls = speech.inference.calls[before:]
    connection.close()
    speech.inference.script = lambda request: SAID
    eventually(lambda: [call.num_cancels for call in calls] == [1, 1])


def test_sound_that_waits_has_a_limit(speech, connect, monkeypatch):
    monkeypatch.setattr(turns, "MAX_SECONDS", 2)
    connection = connect()
    manual(connection)
    append(connection, np.tile(SILENCE, 2), RATE)
    problem = error_of(connection, type=f"{BUFFER}.append", audio=coded(SILENCE))
    assert problem.message == "over 2 seconds of sound wait; commit or clear them"
    assert speech.held == 2 * 2 * RATE
    connection.close()
    eventually(lambda: speech.held == 0)


def test_a_turn_without_an_end_is_ended(connect, sentence, monkeypatch):
    monkeypatch.setattr(turns, "MAX_SECONDS", 3)
    connection = connect()
    append(connection, np.tile(sentence, 3))
    stopped = [
        event for event in until(connection, f"{TEXT}.completed")
        if event.type == f"{BUFFER}.speech_stopped"
    ]  # fmt: skip
    assert stopped[0].audio_end_ms < 3000


def test_no_text_is_written_without_transcription(speech, connect, sentence):
    connection = connect()
    update(connection, turn_detection=None, transcription=None)
    before = len(speech.inference.calls)
    append(connection, sentence, 100_000)
    connection.input_audio_buffer.commit()
    until(connection, "conversation.item.done")
    connection.input_audio_buffer.clear()
    assert connection.recv().type == f"{BUFFER}.cleared"
    assert len(speech.inference.calls) == before


def test_the_older_protocol_has_its_names(speech, sentence):
    headers = {"OpenAI-Beta": "realtime=v1"}
    with _plain(speech, additional_headers=headers) as socket:

        def receive():
            return json.loads(socket.recv(PATIENCE))

        assert receive()["type"] == "transcription_session.created"
        session = {
            "input_audio_format": "pcm16", "turn_detection": None,
            "input_audio_transcription": {"model": "toy", "language": "de"},
        }  # fmt: skip
        socket.send(json.dumps({"type": "transcription_session.update", "session": session}))
        updated = receive()
        assert updated["type"] == "transcription_session.updated"
        assert session.items() <= {
            **updated["session"], "input_audio_transcription": session["input_audio_transcription"],
        }.items()  # fmt: skip
        assert updated["session"]["input_audio_transcription"]["language"] == "de"
        socket.send(json.dumps({"type": f"{BUFFER}.append", "audio": coded(sentence)}))
        socket.send(json.dumps({"type": f"{BUFFER}.commit"}))
        kinds = [receive()["type"] for _ in range(5)]
    assert kinds == [
        f"{BUFFER}.committed", "conversation.item.created", f"{TEXT}.delta", f"{TEXT}.delta",
        f"{TEXT}.completed",
    ]  # fmt: skip
    assert speech.sent == Transcribe(file=speech.sent.file, language="de")


def test_missing_packages_are_named(speech, monkeypatch):
    monkeypatch.setattr("mindspore_serving.frontends.realtime.detector.find_spec", lambda _: None)
    from mindspore_serving.frontends.realtime.detector import load_model

    load_model.cache_clear()
    with pytest.raises(websockets.exceptions.InvalidStatus) as raised:
        _plain(speech)
    assert raised.value.response.status_code == 501
    assert b"pip install --no-deps silero-vad" in raised.value.response.body
