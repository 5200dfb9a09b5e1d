"""Speech in a WAV file by Silero VAD: sequences of chunks, whose states the server keeps."""

import importlib.util
import threading

import numpy as np
import pytest

from tests import printed
from tests.published import file_of

CONTEXT = 64  # samples of the chunk before
pytestmark = [pytest.mark.onnx, pytest.mark.e2e]


@pytest.fixture(scope="module")
def vad(run_example):
    file_of("silero_vad", "data/silero_vad.onnx")
    return run_example("silero_vad", "silero_vad")


@pytest.fixture(scope="module")
def script(vad):
    """The client as a module."""
    spec = importlib.util.spec_from_file_location("vad", vad.directory / "serving_client.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference(script, samples):
    """Probabilities by ONNX Runtime, which gets the state with its batch dimension."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(file_of("silero_vad", "data/silero_vad.onnx")))
    state, probabilities = np.zeros((2, 1, 128), np.float32), []
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    size = script.CHUNK + CONTEXT
    for start in range(0, len(padded) - size + 1, script.CHUNK):
        feed = {"input": padded[None, start : start + size], "state": state, "sr": np.array(16000)}
        output, state = session.run(None, feed)
        probabilities.append(float(output[0, 0]))
    return probabilities


def test_streams_at_once_get_the_probabilities_of_onnx_runtime(vad, script, tmp_path):
    script.synthesize(tmp_path / "speech.wav")
    samples = script.samples_of(tmp_path / "speech.wav")
    streams = [samples, samples[8000:24_000].copy(), samples[::-1].copy()]
    served = [[] for _ in streams]

    def send(index):
        served[index] += script.probabilities(vad.client("predict"), streams[index])

    threads = [threading.Thread(target=send, args=(i,)) for i in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for probabilities, stream in zip(served, streams, strict=True):
        np.testing.assert_allclose(probabilities, reference(script, stream), atol=1e-5)


def test_the_printed_command_is_a_sequence_of_a_single_request(vad, tmp_path):
    (command,) = vad.printed_commands()
    assert "-H 'Sequence-Id: 1' -H 'Sequence-Start: true'" in command
    assert "speech" in printed.paste(command, tmp_path)


def test_the_client_prints_where_speech_begins_and_ends(vad):
    first, last = [line.split() for line in vad.run_client().splitlines()]
    assert (first[2], last[2]) == ("speech", "silence")
    assert float(first[0]) == pytest.approx(0.5, abs=0.1)
    assert float(last[0]) == pytest.approx(1.6, abs=0.3)
