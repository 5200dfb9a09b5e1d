import base64
import re

import numpy as np
import pytest

from tests import printed

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def lenet(run_example):
    return run_example("lenet", "lenet")


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
    printed.paste_all(lenet.printed_commands(), tmp_path)
