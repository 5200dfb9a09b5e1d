"""Load of `tune`: recorded requests, prompts, and what is made from the inputs of a method."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.cli.tune_load import TuneLoad, check, check_file, refused, to_load
from mindspore_serving.cli.tune_settings import TuneSettings
from mindspore_serving.errors import InvalidInputs


def spec(name: str, value: Any, shape: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    return {"name": name, "example": {"value": value, "shape": [*shape]}, **more}


ADD = {"input_specs": [spec("x", 1.0, (2, 2)), spec("y", "text"), spec("z", 5, optional=True)]}
SERVABLE = {"name": "a b", "methods": {"add": ADD, "sub": {"input_specs": [spec("x", 1)]}}}
CARD = {"can_generate": True, "has_chat_template": True, "has_tokenizer": True}
MODEL = {"name": "m", "methods": {}, "model": CARD}


def settings(**values: Any) -> TuneSettings:
    return TuneSettings(servable="", **values)


def recorded(path: Path, *lines: Any) -> str:
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return str(path)


def bodies(load: TuneLoad, count: int, number: int = 1) -> list[Any]:
    dialect = load.dialect(number)
    prompts = itertools.islice(load.prompts(number), count)
    return [json.loads(dialect.to_body(prompt)) for prompt in prompts]


def test_a_synthetic_request_has_examples_of_the_needed_inputs() -> None:
    load = to_load(SERVABLE, settings(method="add"))
    assert bodies(load, 1) == [{"instances": [{"x": [[1.0, 1.0], [1.0, 1.0]], "y": "text"}]}]
    assert load.dialect(1).path == "/model/a%20b:add"
    assert not load.is_language


def test_recorded_requests_are_sent_in_turn_as_often_as_their_count_says(tmp_path: Path) -> None:
    lines = [
        {"method": "sub", "instances": [{"x": 1}]},
        "",
        {"method": "sub", "instances": [{"x": 2}], "count": 2},
    ]
    load = to_load(SERVABLE, settings(load=recorded(tmp_path / "load", *lines)))
    sent = [body["instances"][0]["x"] for body in bodies(load, 5)]
    assert sent == [1, 2, 2, 1, 2]
    assert load.text.endswith("to sub")


def test_of_several_recorded_methods_only_the_chosen_is_called(tmp_path: Path) -> None:
    lines = [{"method": name, "instances": [{"x": name}]} for name in ("add", "sub")]
    path = recorded(tmp_path / "load", *lines)
    with pytest.raises(InvalidInputs, match="calls add, sub: choose one with --method"):
        to_load(SERVABLE, settings(load=path))
    load = to_load(SERVABLE, settings(load=path, method="add"))
    assert [body["instances"][0]["x"] for body in bodies(load, 2)] == ["add", "add"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ':2: .*; expected {"method": "METHOD", "instances"'),
        ({"method": "add"}, ":2: .*missing required field `instances`"),
        ({"instances": [], "times": 2}, ":2: .*unknown field `times`"),
        ({"instances": [], "count": 0}, ":2: count is 0, expected 1 to 10000"),
        ({"instances": [], "count": 10**9}, ":2: count is 1000000000, expected 1 to 10000"),
    ],
)
def test_a_malformed_file_is_refused_with_the_line(line: Any, said: str, tmp_path: Path) -> None:
    path = recorded(tmp_path / "load", {"instances": [{"x": 1}]}, line)
    with pytest.raises(InvalidInputs, match=said):
        check_file(settings(load=path), is_language=False)


def test_files_without_a_request_and_missing_files_are_refused(tmp_path: Path) -> None:
    for is_language in (False, True):
        with pytest.raises(InvalidInputs, match="No such file"):
            check_file(settings(load=str(tmp_path / "none")), is_language=is_language)
    empty = recorded(tmp_path / "empty", "")
    with pytest.raises(InvalidInputs, match="has no request"):
        check_file(settings(load=empty), is_language=False)
    with pytest.raises(InvalidInputs, match="has no prompt"):
        check_file(settings(load=empty), is_language=True)
    with pytest.raises(InvalidInputs, match="line 1: expected"):
        check_file(settings(load=recorded(tmp_path / "p", {"text": 1})), is_language=True)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputs):
        check_file(settings(load=str(tmp_path / "bytes")), is_language=True)


def test_methods_that_do_not_exist_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputs, match="the servable has the methods add, sub: choose one"):
        to_load(SERVABLE, settings())
    with pytest.raises(InvalidInputs, match="--method is 'ad'.*did you mean 'add'"):
        to_load(SERVABLE, settings(method="ad"))
    path = recorded(tmp_path / "load", {"method": "mul", "instances": []})
    with pytest.raises(InvalidInputs, match="calls 'mul', which the servable has not"):
        to_load(SERVABLE, settings(load=path))


def test_methods_with_a_state_are_refused() -> None:
    methods = {"vad": {"input_specs": [spec("x", 1)], "has_state": True}}
    with pytest.raises(InvalidInputs, match="vad has a state"):
        to_load({"name": "v", "methods": methods}, settings())


def test_runs_of_a_language_model_have_prompts_of_their_own() -> None:
    load = to_load(MODEL, settings(input_tokens=9, output_tokens=5))
    first, second = bodies(load, 2, number=1)
    assert (first["max_tokens"], first["ignore_eos"]) == (5, True)
    texts = [body["messages"][0]["content"] for body in (first, second, *bodies(load, 2, number=2))]
    assert len(set(texts)) == 4
    assert bodies(load, 2, number=1) == [first, second]
    assert load.is_language


def test_recorded_prompts_hit_no_cache_of_another_run(tmp_path: Path) -> None:
    path = recorded(tmp_path / "prompts", {"prompt": "Hello", "max_tokens": 3})
    load = to_load({**MODEL, "model": {**CARD, "has_chat_template": False}}, settings(load=path))
    (one,), (two,) = bodies(load, 1, number=1), bodies(load, 1, number=2)
    assert one["prompt"] == two["prompt"] == "Hello"
    assert one["cache_salt"] != two["cache_salt"]
    assert load.dialect(1).path == "/v1/completions"


def test_models_that_do_not_generate_are_refused() -> None:
    with pytest.raises(InvalidInputs, match="m does not generate"):
        to_load({**MODEL, "model": {**CARD, "can_generate": False}}, settings())


def test_a_refused_request_says_how_to_give_another() -> None:
    load = to_load(SERVABLE, settings(method="add"))
    assert "record a request that it accepts" in str(refused(load, ("status 400", "wrong x")))
    assert "wrong x" in str(refused(load, ("status 400", "wrong x")))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"concurrency": (4, 0)}, "--concurrency 0: expected 1 to 999"),
        ({"knobs": ("worker",)}, "'worker', expected some of backend.*did you mean 'workers'"),
        ({"output": "/no/such/out.yaml"}, "cannot write /no/such/out.yaml: there is no directory"),
        ({"goal": "quick"}, "--goal is 'quick', expected limits as p99<50ms"),
    ],
)
def test_wrong_options_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputs, match=said):
        check(settings(**values))
