"""The `config` of a load: what of Triton's ModelConfig is a setting here, and what is refused."""

import json
from typing import Any

import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.v2.load_config import to_changes

SHOWN = {"name": "toy", "max_batch_size": 8, "input": [{"name": "x", "dims": [2]}]}


def changes(**config: Any) -> Any:
    return to_changes(json.dumps(config), SHOWN)


def test_dynamic_batching_is_how_long_a_batch_waits_and_for_how_many() -> None:
    given = {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 500}
    assert changes(dynamic_batching=given) == {
        "max_batch_delay_ms": 0.5,
        "preferred_batch_size": 8,
    }


def test_numbers_of_64_bits_may_be_texts() -> None:
    found = changes(dynamic_batching={"max_queue_delay_microseconds": "2000000"})
    assert found["max_batch_delay_ms"] == 2000


def test_an_instance_group_is_the_number_of_workers() -> None:
    found = changes(instance_group=[{"name": "a", "count": 3, "kind": "KIND_CPU"}])
    assert found == {"num_parallel_workers": 3, "max_workers": 0}


def test_parameters_are_settings_by_our_names() -> None:
    texts = {"max_requests": "5", "stage_timeout": "1.5", "retry": "false"}
    given = {name: {"string_value": text} for name, text in texts.items()}
    assert changes(parameters=given) == {"max_requests": 5, "stage_timeout": 1.5, "retry": False}


def test_parameters_of_traffic_are_read_and_checked() -> None:
    texts = {"traffic": "1=90,2=10", "shadow": "", "sticky": "Header:X-User"}
    parameters = {name: {"string_value": text} for name, text in texts.items()}
    assert changes(parameters=parameters) == {
        "traffic": {"1": 90, "2": 10},
        "shadow": {},
        "sticky": "header:x-user",
    }
    for name, text in {"traffic": "1", "shadow": "1=101", "sticky": "x"}.items():
        with pytest.raises(InvalidInputs, match=f"^config: .*{name}"):
            changes(parameters={name: {"string_value": text}})


def test_present_values_can_be_repeated() -> None:
    assert changes(**SHOWN) == {}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"max_batch_size": 9},
            "'max_batch_size' cannot be changed; fields that can: dynamic_batching",
        ),
        ({"version_policy": {"all": {}}}, "'version_policy' cannot be changed"),
        ({"dynamic_batching": {"preserve_ordering": True}}, "'preserve_ordering' of dynamic_b"),
        ({"dynamic_batching": {"preferred_batch_size": [0]}}, "preferred_batch_size"),
        ({"dynamic_batching": {"preferred_batch_size": [2**16 + 1]}}, "of 1 to 65536"),
        ({"dynamic_batching": {"max_queue_delay_microseconds": 10**400}}, "expected 0 to"),
        ({"dynamic_batching": {"max_queue_delay_microseconds": "1" * 5000}}, "expected 0 to"),
        ({"dynamic_batching": {"max_queue_delay_microseconds": "nan"}}, "max_queue_delay"),
        ({"dynamic_batching": None}, "dynamic_batching is not an object"),
        ({"instance_group": [{"kind": "KIND_GPU", "gpus": [0]}]}, "KIND_GPU.*which devices"),
        ({"instance_group": [{"gpus": [0]}]}, "'gpus' of instance_group"),
        ({"instance_group": [{"count": 65}]}, "count is 65, expected 1 to 64"),
        ({"instance_group": [{"count": True}]}, "count is True"),
        ({"instance_group": [{}, {}]}, "not a list of one group"),
        ({"parameters": {"llm_options": {"string_value": "{}"}}}, "'llm_options' is unknown"),
        ({"parameters": {"retry": {"string_value": "yes"}}}, "expected true or false"),
        ({"parameters": {"retry": "true"}}, "string_value"),
        ({"parameters": {"max_requests": {"string_value": "-1"}}}, "expected 0 to"),
    ],
)
def test_anything_else_is_refused_by_name(config: Any, problem: str) -> None:
    with pytest.raises(InvalidInputs, match=problem):
        changes(**config)


@pytest.mark.parametrize("text", ["", "[]", "{", 7, None, '"' + "[" * 100_000])
def test_a_config_is_the_text_of_a_json_object(text: Any) -> None:
    with pytest.raises(InvalidInputs, match="'config' is not a? ?JSON"):
        to_changes(text, SHOWN)
