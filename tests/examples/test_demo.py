"""The demo, and the example lenet with the model that the demo trains."""

import base64
import re
import socket

import numpy as np
import pytest

from examples.smollm2 import INSTALL, find_model
from mindspore_serving.client import Client
from tests.printed import paste_all
from tests.waiting import eventually

pytestmark = [pytest.mark.mindspore, pytest.mark.onnx, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def printed(demo):
    """What the demo says from nothing made to the end."""
    return demo.run()


def test_the_demo_makes_the_models_and_prints_progress(printed):
    assert re.search(r"\[2/4\] add: making the model\n +wrote .*tensor_add\.mindir", printed)
    assert [int(epoch) for epoch in re.findall(r"epoch +(\d+)/10", printed)] == list(range(1, 11))


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


@pytest.fixture(scope="module")
def lenet(demo, printed, serve_example):
    """`printed` is there when the model is."""
    return serve_example(demo.directory / "lenet", "lenet")


@pytest.fixture(scope="module")
def held_out(lenet):
    """(content, label) of every picture that the network was not trained on."""
    paths = sorted((lenet.directory / "test_images").glob("*.png"))
    return [(path.read_bytes(), int(path.stem[-1])) for path in paths]


def test_the_labels_are_those_of_the_data_set(held_out):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    target = load_digits().target
    _, expected = train_test_split(target, test_size=0.2, random_state=0, stratify=target)
    assert [label for _, label in held_out] == expected.tolist()


def test_more_than_95_of_100_held_out_digits_are_read_right(lenet, held_out):
    answers = lenet.client("predict").infer([{"image": content} for content, _ in held_out])
    right = [
        int(answer["digit"]) == label for answer, (_, label) in zip(answers, held_out, strict=True)
    ]
    assert len(right) == 360
    assert np.mean(right) > 0.95


def test_both_methods_and_all_clients_agree(lenet, held_out):
    instances = [{"image": content} for content, _ in held_out[:20]]
    waiting = lenet.client("classify").infer_async(instances)
    argmax = [int(answer["digit"]) for answer in lenet.client("predict").infer(instances)]
    classified = [(one["digit"], float(one["probability"])) for one in waiting.result()]
    encoded = [
        {"image": {"b64": base64.b64encode(content).decode()}} for content, _ in held_out[:20]
    ]
    rest = [(one["digit"], one["probability"]) for one in lenet.post("classify", encoded)]
    assert [int(digit) for digit, _ in classified] == argmax
    assert [digit for digit, _ in rest] == [digit for digit, _ in classified]
    np.testing.assert_allclose([p for _, p in rest], [p for _, p in classified], atol=1e-5)
    assert all(0.1 <= probability <= 1 for _, probability in classified)


def test_bytes_that_are_no_picture_fail_alone(lenet, held_out):
    content, _ = held_out[0]
    good, bad = lenet.client("predict").infer([{"image": content}, {"image": b"no picture"}])
    assert good["digit"].dtype == np.int64
    assert "cannot identify image" in bad["error"]


def test_the_client_prints_predicted_and_true(lenet):
    lines = lenet.run_client().splitlines()
    found = [re.search(r"predicted (\d)( \(\d+%\))?, true (\d)$", line) for line in lines]
    assert [line.split()[0] for line in lines] == ["sync"] * 20 + ["async"] * 10 + ["REST"] * 10
    assert all(found)
    assert sum(match[1] == match[3] for match in found) >= 36


def test_the_printed_commands_work(tmp_path, lenet):
    paste_all(lenet.printed_commands(), tmp_path)
