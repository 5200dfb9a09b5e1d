"""Knobs of `tune`: which settings are tried for which servables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mindspore_serving.cli.config_file import FIELDS, PER_SERVABLE
from mindspore_serving.cli.tune_knobs import (
    KNOBS,
    LANGUAGE_PREFIX,
    Subject,
    chosen,
    describe,
    entry,
    merged,
)
from mindspore_serving.llm.config import OPTIONS, EngineConfig

EVERY = frozenset({"mindspore", "onnxruntime", "openvino"})
NET = Subject("onnx", is_language=False, cores=range(4), clients=16, libraries=EVERY)
MODEL = replace(NET, format="directory", is_language=True, allows_rounding=True, draft="/d.gguf")
INT8 = replace(NET, int8="/n.xml")
CHOSEN: Mapping[str, Any] = {}


def values(name: str, subject: Subject, settings: Mapping[str, Any] = CHOSEN) -> list[Any]:
    kind = subject.is_language
    (knob,) = [knob for knob in KNOBS if (knob.name, knob.is_language) == (name, kind)]
    return list(knob.values(subject, settings))


def names(subject: Subject, fixed: list[str] | None = None) -> list[str]:
    return [knob.name for knob in chosen(subject, fixed or [])]


@pytest.mark.parametrize(
    "subject", [NET, MODEL, replace(NET, int8="/n.xml"), replace(NET, format="")]
)
def test_every_value_is_an_option_of_a_configuration_file(subject: Subject) -> None:
    settings = {"max_batch_delay_ms": 2, "num_parallel_workers": 2}
    for knob in chosen(subject, []):
        for changes in knob.values(subject, settings):
            for name, value in changes.items():
                if name.startswith(LANGUAGE_PREFIX):
                    OPTIONS[name.removeprefix(LANGUAGE_PREFIX)].check(value)
                else:
                    assert name == "path" or name in FIELDS
                    assert (
                        value is None
                        or name == "path"
                        or not FIELDS[name].choices
                        or value in FIELDS[name].choices
                    )


def test_values_of_language_models_go_together() -> None:
    for knob in chosen(MODEL, []):
        for changes in knob.values(MODEL, {}):
            options = {name.removeprefix(LANGUAGE_PREFIX): value for name, value in changes.items()}
            options.pop("runtime", None)
            made = EngineConfig(**options)
            assert {name: getattr(made, name) for name in options} == options


def test_a_library_that_is_missing_and_the_default_are_not_tried() -> None:
    assert values("backend", NET) == [{"backend": "openvino"}]
    assert values("backend", replace(NET, libraries=frozenset({"openvino"}))) == []
    assert values("backend", replace(NET, format="mindir")) == [{"backend": "openvino"}]
    assert values("backend", replace(NET, format="")) == []


def test_int8_needs_a_quantised_file_and_replaces_the_backend() -> None:
    assert values("int8", NET) == []
    (changes,) = values("int8", replace(NET, int8="/n.xml"))
    assert merged({"backend": "openvino"}, changes) == {"path": "/n.xml"}
    assert values("backend", NET, {"path": "/n.xml"}) == []


def test_bfloat16_is_tried_where_openvino_runs_the_file() -> None:
    changes = [{"precision": "bfloat16"}]
    assert values("precision", NET) == []
    assert values("precision", NET, {"backend": "openvino"}) == changes
    assert values("precision", replace(NET, libraries=frozenset({"openvino"}))) == changes
    assert values("precision", replace(NET, format="openvino")) == changes
    assert values("precision", replace(NET, format="xgboost")) == []
    assert values("precision", replace(NET, format="")) == []
    assert values("precision", NET, {"backend": "openvino", "path": "/n.xml"}) == []


def test_threads_are_fewer_than_all_cores() -> None:
    assert values("threads", NET) == [{"model_threads": 1}, {"model_threads": 2}]
    assert values("threads", NET, {"num_parallel_workers": 4})[0] == {"model_threads": 1}
    assert values("threads", replace(NET, cores=(0,))) == []
    assert values("threads", replace(NET, format="")) == []


@pytest.mark.parametrize(("cores", "sizes"), [(1, []), (2, [2]), (4, [2, 4]), (6, [2, 4, 6])])
def test_workers_are_at_most_as_many_as_cores(cores: int, sizes: list[int]) -> None:
    tried = values("workers", replace(NET, cores=range(cores)))
    assert [changes["num_parallel_workers"] for changes in tried] == sizes


def test_each_worker_gets_its_share_of_the_cores() -> None:
    subject = replace(NET, cores=(0, 1, 4, 5))
    assert values("cores", subject) == [{"cores": "0,1"}]
    assert values("cores", subject, {"num_parallel_workers": 2}) == [{"cores": "0,1;4,5"}]
    assert values("cores", replace(NET, cores=(3,))) == []


def test_a_preferred_size_needs_a_delay_and_enough_clients() -> None:
    assert values("batch", NET) == []
    sizes = values("batch", replace(NET, clients=5), {"max_batch_delay_ms": 2})
    assert sizes == [{"preferred_batch_size": 2}, {"preferred_batch_size": 4}]


def test_a_step_has_at_least_a_token_for_each_sequence() -> None:
    most = {"llm_option.max_num_seqs": 256}
    assert {"llm_option.max_num_batched_tokens": 128} not in values("step", MODEL, most)
    small = {"llm_option.max_num_batched_tokens": 128}
    large = values("sequences", replace(MODEL, clients=400), small)
    assert {"llm_option.max_num_seqs": 128} in large
    assert {"llm_option.max_num_seqs": 256} not in large


def test_rounding_is_tried_only_on_demand() -> None:
    exact = replace(MODEL, allows_rounding=False)
    assert set(names(MODEL)) - set(names(exact)) == {"quantization", "dtype", "kv_cache_dtype"}
    assert set(names(replace(NET, allows_rounding=True))) - set(names(NET)) == {"precision"}
    assert "int8" in names(INT8)  # its data is given


def test_weights_are_rounded_for_the_runtime_that_can() -> None:
    assert values("quantization", MODEL) == [{"quantization": "int8"}, {"quantization": "int4"}]
    assert values("quantization", MODEL, {"runtime": "torch"}) == []
    assert values("quantization", replace(MODEL, format="gguf")) == []


def test_options_that_the_user_sets_stay() -> None:
    assert "backend" not in names(NET, ["backend"])
    assert "workers" not in names(NET, ["max_workers"])
    assert "step" not in names(MODEL, ["llm_option.max_num_batched_tokens"])
    assert [knob.name for knob in chosen(NET, [], ["cores", "delay"])] == ["cores", "delay"]


def test_changes_to_the_default_are_left_out() -> None:
    assert merged({"cores": "0"}, {"cores": None, "num_parallel_workers": 2}) == {
        "num_parallel_workers": 2
    }


def test_the_configuration_has_the_changes_where_serve_reads_them() -> None:
    changes = {"llm_option.dtype": "f32", "runtime": "torch", "front_ends": 2, "path": "/b"}
    content = entry(
        {"path": "/a", "llm_option": {"block_size": 32}}, changes, PER_SERVABLE.__contains__
    )
    servable = {"path": "/b", "llm_option": {"block_size": 32, "dtype": "f32"}, "runtime": "torch"}
    assert content == {"servables": [servable], "front_ends": 2}


def test_changes_are_described_in_a_line() -> None:
    assert describe({}) == "defaults"
    assert describe({"cores": "0", "llm_option.dtype": "f32"}) == "cores 0, dtype f32"
