"""Live speech on a real server with front ends and keys: OpenAI's client, Whisper, real turns."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Thread
from typing import Any

import numpy as np
import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mindspore_serving import server
from mindspore_serving.core.resampling import resample
from tests.e2e.harness import Calls, config, eventually, serving
from tests.llm import hearing
from tests.published import file_of, make_whisper
from tests.speaking import samples_of, spoken, words_of
from tests.waiting import PATIENCE

# OpenAI's client connects without a `with` block.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning"),
]
KEY = "a-key-that-is-long-enough"
LIMITED = "another-key-that-is-long-enough"  # only the master counts its requests
RATE = 24_000
SENTENCES = {
    "Good morning everyone, the weather is very nice today.": "good morning everyone",
    "My brother has lived in New York for twenty years.": "new york",
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    file_of("silero_vad", "data/silero_vad.onnx")
    place = tmp_path_factory.mktemp("live")
    (place / "whisper").mkdir()
    make_whisper(place / "whisper")
    hearing.make_moonshine(place / "moonshine")
    models = [config(place, n, llm_options={"max_num_seqs": 4}) for n in ("whisper", "moonshine")]
    keys = place / "keys"
    keys.write_text(f"{KEY} free\n{LIMITED} limited max_requests=2\n")
    keys.chmod(0o600)
    with serving(place, *models, front_ends=2, api_keys=keys) as served:
        yield served


def sound_of(text: str) -> Any:
    samples = samples_of(spoken(text)).astype(np.float32)
    gap = np.zeros(RATE, np.float32)
    changed = resample(samples, 22_050, RATE)
    return np.concatenate([gap, changed, gap]).astype(np.int16)


def write_down(client: openai.OpenAI, text: str, model: str = "whisper") -> str:
    """The transcript of a sentence that is spoken; in English, of a model that can be told so."""
    samples = sound_of(text)
    chosen: Any = {"model": model} | ({"language": "en"} if model == "whisper" else {})
    with client.realtime.connect(model=model, extra_query={"intent": "transcription"}) as live:
        live.session.update(
            session={"type": "transcription", "audio": {"input": {"transcription": chosen}}}
        )
        for begin in range(0, len(samples), 2400):
            audio = base64.b64encode(samples[begin : begin + 2400].tobytes()).decode()
            live.input_audio_buffer.append(audio=audio)
        for event in live:
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.completed":
                return event.transcript
    raise AssertionError("the session has ended")


def test_live_speech_is_written_down(calls: Calls) -> None:
    url = f"http://127.0.0.1:{calls.http}/v1"
    free, limited = (openai.OpenAI(base_url=url, api_key=key) for key in (KEY, LIMITED))
    requests = [*zip((free, limited), SENTENCES, strict=True)]
    with free, limited, ThreadPoolExecutor(2) as pool:  # their turns are computed together
        written = list(pool.map(write_down, *zip(*requests, strict=True)))
    for (_, text), transcript in zip(requests, written, strict=True):
        assert SENTENCES[text] in words_of(transcript)
    counted = b'serving_responses_total{code="101",protocol="openai"} 2'
    headers = {"Authorization": f"Bearer {KEY}"}
    eventually(lambda: counted in calls.http_call("GET", "/metrics", headers=headers)[1])


def test_live_speech_is_read_by_a_model_without_languages(calls: Calls) -> None:
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY) as client:
        assert write_down(client, next(iter(SENTENCES)), "moonshine")  # of random weights


def test_a_key_is_needed_and_the_document_has_the_route(calls: Calls) -> None:
    status, body = calls.http_call("GET", "/v1/realtime?intent=transcription")
    assert status == 401
    headers = {"Authorization": f"Bearer {KEY}"}
    assert calls.http_call("GET", "/v1/realtime", headers=headers)[0] == 426
    document = json.loads(calls.http_call("GET", "/openapi.json", headers=headers)[1])
    described = document["paths"]["/v1/realtime"]["get"]
    assert {"101", "426"} <= described["responses"].keys()


def test_open_sessions_end_when_the_server_stops(calls: Calls) -> None:
    url = f"ws://127.0.0.1:{calls.http}/v1/realtime"
    with ExitStack() as stack:
        sockets = []
        for key in (KEY, LIMITED):  # one of a front end, one of the master
            headers = {"Authorization": f"Bearer {key}"}
            socket = stack.enter_context(connect(url, additional_headers=headers))
            assert "session.created" in str(socket.recv(PATIENCE))
            sockets.append(socket)
        stopping = Thread(target=server.stop)
        stopping.start()
        for socket in sockets:
            with pytest.raises(ConnectionClosed) as raised:
                socket.recv(PATIENCE)
            ended = raised.value.rcvd
            assert ended is not None
            assert (ended.code, ended.reason) == (1001, "the server is stopping")
        stopping.join()
