import re
import socket

import numpy as np
import pytest

from examples.smollm2 import INSTALL, find_model
from mindspore_serving.client import Client
from tests.waiting import eventually

pytestmark = [pytest.mark.mindspore, pytest.mark.onnx, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def printed(demo):
    """What the demo says from nothing made to the end."""
    return demo.run()


def test_the_demo_makes_the_models_and_prints_progress(printed):
    assert re.search(r"\[2/4\] add: making the model\n +wrote .*tensor_add\.mindir", printed)
    assert [int(epoch) for epoch in re.findall(r"epoch +(\d+)/20", printed)] == list(range(1, 21))


def test_the_demo_prints_real_answers_of_both_protocols(printed):
    assert "+ [[10.0, 20.0], [30.0, 40.0]] = [[11.0, 22.0], [33.0, 44.0]]" in printed
    assert "-> {'instances': [{'y': [[6.0, 8.0], [10.0, 12.0]]}]}" in printed
    held_out, right = re.search(r"(\d+) held-out digits .*: (\d+) right", printed).groups()
    assert held_out == "360"
    assert int(right) > 0.95 * 360


def test_the_demo_chats_in_words(printed):
    if re.search("(smollm2|tiny_llm): left out", printed):
        pytest.skip("what language models need is not installed")
    answer = re.search(r"OpenAI '.*' -> (.*)", printed).group(1)
    if find_model():
        assert answer == "The capital of France is Paris."
    else:
        assert len(answer.split()) >= 3


def test_the_demo_prints_how_to_install_a_real_model(printed):
    assert (INSTALL in printed) == (find_model() is None)


def test_the_demo_stops_by_itself_with_all_its_workers(demo, printed):
    assert printed.splitlines()[-1] == "stopped"
    eventually(lambda: demo.processes() == [])


def test_a_port_in_use_is_named_and_nothing_stays_behind(demo, printed):
    with socket.create_server(("127.0.0.1", int(demo.env["SERVING_HTTP_PORT"]))):
        said = demo.run(status=1)
    assert f"127.0.0.1:{demo.env['SERVING_HTTP_PORT']}" in said.splitlines()[-2]
    assert said.splitlines()[-1].startswith("For other ports: SERVING_GRPC_PORT=")
    assert "Traceback" not in said
    eventually(lambda: demo.processes() == [])


@pytest.mark.long
def test_serve_stays_until_ctrl_c_and_exits_cleanly(demo, printed):
    with demo.serve() as process:
        # The server, two workers of add, one each of the others that are installed.
        started = [one for one in demo.processes() if "llm.processing.child" not in one]
        assert len(started) == 6 - printed.count("left out")
        client = Client("127.0.0.1:" + demo.env["SERVING_GRPC_PORT"], "add", "add_common")
        ones = np.ones((2, 2), np.float32)
        assert client.infer({"x1": ones, "x2": ones})[0]["y"].tolist() == [[2, 2], [2, 2]]
    assert process.returncode == 0
    eventually(lambda: demo.processes() == [])
