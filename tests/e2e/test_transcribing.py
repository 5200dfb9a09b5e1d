"""A language model that transcribes, on a real server: texts are those of transformers."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import Calls, config, serving
from tests.llm import listening, transcribers
from tests.published import file_of
from tests.waiting import PATIENCE

# OpenAI's client connects without a `with` block, and has translations that are deprecated.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

KIND = "qwen3-asr"
OPTIONS = {
    "dtype": "f32", "kv_cache_memory": 8 << 20, "preparation_timeout": PATIENCE,
    "max_audio_seconds": 80.0,
}  # fmt: skip
SOUND = listening.sound(1, 41.0)
WAV = listening.wav(SOUND)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return transcribers.build(tmp_path_factory.mktemp("transcribing"), KIND)


@pytest.fixture(scope="module")
def calls(directory: Path) -> Iterator[Calls]:
    with serving(directory.parent, config(directory.parent, KIND, llm_options=OPTIONS)) as served:
        yield served


@pytest.fixture(scope="module")
def client(calls: Calls) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(directory: Path) -> dict[str, str]:
    """Texts of SOUND by language."""
    reference = transcribers.Transcriber(directory, KIND)
    starts = {"": "", "de": "language German<asr_text>"}
    return {code: reference.text(SOUND, start) for code, start in starts.items()}


def write(client: openai.OpenAI, file: bytes = WAV, **fields: Any) -> Any:
    return client.audio.transcriptions.create(model=KIND, file=("a.wav", file), **fields)


def test_a_recording_has_the_text_of_transformers(
    client: openai.OpenAI, expected: dict[str, str]
) -> None:
    answer = write(client)
    assert (answer.text, answer.usage.seconds) == (expected[""], 41)
    assert write(client, language="de", response_format="text") == expected["de"] + "\n"
    events = list(write(client, language="de", stream=True))
    assert [event.type for event in events[-2:]] == [
        "transcript.text.delta", "transcript.text.done",
    ]  # fmt: skip
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == expected["de"]


def test_the_method_transcribe_has_the_text(calls: Calls, expected: dict[str, str]) -> None:
    parameters = json.dumps({"language": "de"})
    with calls.client(KIND, "transcribe") as asked:
        (answer,) = asked.infer({"audio": WAV, "parameters": parameters})
    assert (answer["text"], answer["language"]) == (expected["de"], "de")
    instance = {"audio": {"b64": base64.b64encode(WAV).decode()}}
    (answer,) = calls.post(KIND, "transcribe", [instance])["instances"]
    assert answer["text"] == expected[""]


def test_a_live_turn_has_a_text(client: openai.OpenAI) -> None:
    pytest.importorskip("wsproto", reason="the extra realtime is not installed")
    file_of("silero_vad", "data/silero_vad.onnx")
    query = {"intent": "transcription"}
    with client.realtime.connect(model=KIND, extra_query=query) as live:
        inputs = {"turn_detection": None, "transcription": {"model": KIND, "language": "de"}}
        live.session.update(session={"type": "transcription", "audio": {"input": inputs}})
        sound = listening.sound(1, 1.5).tobytes()  # 1 s of 24,000 samples
        live.input_audio_buffer.append(audio=base64.b64encode(sound).decode())
        live.input_audio_buffer.commit()
        for event in live:
            assert event.type != "error", event
            if event.type.endswith("input_audio_transcription.completed"):
                assert (bool(event.transcript), event.usage.seconds) == (True, 1.0)
                return
    raise AssertionError("the session has ended")


def test_the_model_also_answers_chats_with_sounds(client: openai.OpenAI) -> None:
    content = [listening.part(SOUND[:16_000]), {"type": "text", "text": "Hm?"}]
    messages: Any = [{"role": "user", "content": content}]
    answer = client.chat.completions.create(model=KIND, messages=messages, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 13
    shown: Any = client.models.retrieve(KIND)
    assert shown.input_modalities == ["text", "audio"]


@pytest.mark.parametrize(
    ("file", "fields", "param", "told"),
    [
        (b"", {}, "file", "is empty"),
        (b"RIFX and more", {}, "file", "of no known format"),
        (listening.wav(listening.sound(1, 81.0)), {}, "file", "more than 80 seconds"),
        (WAV, {"language": "xx"}, "language", "is 'xx', expected one of ar, cs"),
        (WAV, {"response_format": "srt"}, "response_format", "use json or text"),
        (WAV, {"extra_body": {"beam_size": 3}}, "beam_size", "is 3, expected 1"),
    ],
)
def test_bad_requests_are_refused_by_their_field(
    client: openai.OpenAI, file: bytes, fields: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=told) as refused:
        write(client, file, **fields)
    assert refused.value.param == param


def test_translations_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="transcribes and cannot translate"):
        client.audio.translations.create(model=KIND, file=("a.wav", WAV))
