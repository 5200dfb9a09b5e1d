"""The engine of speech: many recordings together, those that leave, and those that are refused."""

import pytest

from mindspore_serving.core.llm_messages import Generate, Refused
from mindspore_serving.core.speech_messages import Heard, Transcribe, Transcribed
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.speech.engine import SpeechEngine
from tests.llm import hearing
from tests.llm.sounding import SoundClient
from tests.llm.sounds.test_decoding import wav
from tests.waiting import eventually

pytestmark = pytest.mark.torch
OPTIONS = {"dtype": "f32", "max_num_seqs": 3, "max_num_waiting": 6, "max_audio_seconds": 100}


class Client(SoundClient):
    """A client of the model in `directory`."""

    def __init__(self, directory, **options):
        config = EngineConfig(**{**OPTIONS, **options})
        super().__init__(SpeechEngine(str(directory), config, lambda: None))

    def text(self, number):
        segments = [row for event in self.events[number][:-1] for row in event.segments]
        return [(row.text, row.tokens, row.start, row.end) for row in segments]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("engine")
    hearing.make_directory(directory)
    return directory


@pytest.fixture
def client(directory):
    client = Client(directory)
    yield client
    client.engine.close()


def request_of(file, **fields):
    """A request without higher temperatures, which a random model would always need."""
    return Transcribe(file=file, temperature=1e-6, **fields)


def recording(number, seconds=1.5):
    return wav(rate=8000 + 1000 * number, seconds=seconds)


def test_recordings_together_have_the_texts_that_each_has_alone(client):
    files = [recording(number) for number in range(5)]
    requests = [request_of(file, has_times=number % 2 == 1) for number, file in enumerate(files)]
    for number, request in enumerate(requests):
        client.send(request)
        client.wait(number + 1)
    for request in requests:
        client.send(request)
    client.wait(10)
    for number in range(5):
        end = client.events[number][-1]
        assert isinstance(end, Transcribed)
        assert (end.language in hearing.LANGUAGES, round(end.seconds, 2)) == (True, 1.5)
        assert client.text(number) == client.text(number + 5)
        assert client.text(number)


def test_a_long_recording_is_delivered_in_order(client):
    client.send(request_of(recording(0, 62), language="en"))
    client.wait(1)
    starts = [row.start for event in client.events[0][:-1] for row in event.segments]
    assert len(starts) >= 3
    assert starts == sorted(starts)
    assert all(isinstance(event, Heard) for event in client.events[0][:-1])


def test_a_request_that_is_cancelled_leaves_room(client):
    names = [client.send(request_of(recording(0, 90), language="en")) for _ in range(3)]
    eventually(lambda: client.engine.stats.num_running > 0)
    for name in names:
        client.engine.cancel(name)
    client.send(request_of(recording(1), language="en"))
    client.wait(1)
    assert client.ended == [3]
    eventually(lambda: client.engine.stats.num_running + client.engine.stats.num_waiting == 0)
    assert client.engine.num_open == 0


@pytest.mark.parametrize(
    ("request_", "field", "text"),
    [
        (Transcribe(file=b"nothing"), "file", "of no known format"),
        (Transcribe(file=wav(seconds=101)), "file", "of more than 100 seconds"),
        (Transcribe(file=wav(), language="xx"), "language", "expected one of de, en, fr"),
        (Generate(prompt="Hi"), "model", "transcribes speech and cannot generate"),
    ],
)
def test_a_wrong_request_is_refused(client, request_, field, text):
    client.send(request_)
    client.wait(1)
    (refused,) = client.events[0]
    assert isinstance(refused, Refused)
    assert (refused.field, text in refused.text) == (field, True)


def test_silence_and_too_many_requests(client):
    client.send(Transcribe(file=wav(seconds=0.01)[:44] + bytes(320)))
    client.wait(1)
    for _ in range(9):
        client.send(request_of(recording(0), language="en"))
    client.wait(10)
    refused = [events[0] for events in client.events if isinstance(events[0], Refused)]
    assert refused
    assert {event.reason for event in refused} == {"overloaded"}
    assert isinstance(client.events[0][-1], Transcribed)
    assert len(client.events[0]) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"enable_prefix_caching": False}, "models of speech have no option enable_prefix_caching"),
        ({"dtype": "f64"}, "dtype is 'f64'"),
    ],
)
def test_options_of_other_models_are_refused(directory, options, text):
    with pytest.raises(StartError, match=text):
        Client(directory, **options)


def test_memory_limits_the_pieces_of_a_step(directory):
    client = Client(directory, kv_cache_memory=1, max_num_seqs=8)
    try:
        assert client.engine.card.max_num_seqs == 1
        assert client.engine.card.can_transcribe
        assert client.engine.card.languages == tuple(sorted(hearing.LANGUAGES))
    finally:
        client.engine.close()
