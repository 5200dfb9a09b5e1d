"""Recorded requests that a worker runs before it is ready."""

import json
from types import SimpleNamespace

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.servable import recorded_requests
from mindspore_serving.worker import loading, warm_up

NO_REMOTE = SimpleNamespace(call=None)  # nothing is called in other workers
SERVABLE = """
@signature(1, 1)
def double(x):
    return x * 2

model = register.declare_model(double, model_format="Python")

def note(x, y):
    with open(NOTES, "a") as file:
        file.write(f"{x.tolist()}:{y.tolist()} ")
    if x < 0:
        raise ValueError("no")
    return y

def count(x):
    for number in range(int(x)):
        yield str(number)
        with open(NOTES, "a") as file:
            file.write(f"{number} ")

@register.register_method(output_names=["y"])
def noted(x):
    y = register.add_stage(model, x, outputs_count=1)
    return register.add_stage(note, x, y, outputs_count=1)

@register.register_method(output_names=["y"])
def streamed(x):
    return register.add_stage(count, x, outputs_count=1)
"""


@pytest.fixture
def start(write, tmp_path):
    """start(*lines): load the servable with these lines; returns what its functions noted."""

    def load(*lines, file=warm_up.FILE, **changes):
        notes, directory = tmp_path / "notes", tmp_path / "tiny"
        (directory / "1").mkdir(parents=True, exist_ok=True)
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (directory / file).write_text(text)
        setup = write(f"NOTES = {str(notes)!r}\n" + SERVABLE, **changes)
        loading.load(setup, NO_REMOTE, lambda: lambda: None)
        return notes.read_text().split() if notes.exists() else []

    return load


def request(*values, method="noted", **fields):
    return {"method": method, "instances": [{"x": value} for value in values], **fields}


def test_requests_run_through_all_stages_before_the_servable_is_loaded(start):
    assert start(request(1, 2), "", request(3, count=2)) == ["1:2", "2:4", "3:6", "3:6"]


def test_a_file_of_the_version_is_used_alone(start, tmp_path):
    assert start(request(1)) == ["1:2"]
    (tmp_path / "notes").unlink()
    assert start(request(5), file=f"1/{warm_up.FILE}") == ["5:10"]


def test_a_stream_runs_to_its_end(start):
    assert start(request(3, method="streamed")) == ["0", "1", "2"]


def test_a_worker_without_models_runs_none(start, write):
    setup = write("NOTES = ''\n" + SERVABLE)
    reports = loading.load(setup, NO_REMOTE, lambda: lambda: None).models
    assert start(request(1), owns_models=False, models=reports) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (request(1, -1), r":2: Call Function 'tiny.note' Failed, method: 'noted', .* no"),
        ({"method": "noted", "instances": [{"z": 1}]}, r":2: .*x"),
        ({"method": "noted", "instances": 1}, r":2: "),
        (request(1, method="note"), "has no method 'note'"),
        (request(1, method=""), r"has no method ''; methods are noted, streamed"),
        (request(1, method="@call_x"), "has no method '@call_x'"),
        (request(1, count=0), "count is 0, expected at least 1"),
        (request(1, count=10_000), "at most 10000 in all lines"),
        ("{", ":2: Input data was truncated; expected {"),
        ("[" * 100_000, ":2: .*; expected {"),
        ({**request(1), "more": 1}, "unknown field `more`"),
    ],
)
def test_a_line_that_fails_stops_the_start_and_is_named(start, line, problem):
    with pytest.raises(StartError, match=problem):
        start(request(0), line)


def test_a_large_file_is_refused(start, monkeypatch):
    monkeypatch.setattr(recorded_requests, "MAX_SIZE", 10)
    with pytest.raises(StartError, match=r"bytes, at most 10 are accepted"):
        start(request(1))
