"""config.pbtxt: what of it has an effect, what is named, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.core.declaration import WarmUpInput, WarmUpSample
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.servable_options import ServableOptions
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.triton import FILE, MAX_SIZE

FULL = """
name: "resnet"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "pixels" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] format: FORMAT_NCHW } ]
output [
  { name: "scores" data_type: TYPE_FP16 dims: [ 1000 ] label_filename: "labels.txt" },
  { name: "label" data_type: TYPE_STRING dims: [ 1 ] }
]
version_policy: { specific: { versions: [ 1, 3 ] } }
instance_group [ { count: 2 kind: KIND_CPU host_policy: "x" }, { kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 priority_levels: 2
  default_queue_policy { default_timeout_microseconds: 2000000 max_queue_size: 16 }
}
optimization { cuda { graphs: true } }
parameters { key: "intra_op_thread_count" value: { string_value: "3" } }
parameters { key: "execution_mode" value: { string_value: "1" } }
parameters { key: "other" value: { string_value: "" } }
response_cache { enable: true }
"""


def read(tmp_path: Path, text: str, name: str = "resnet") -> ForeignModel:
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    (directory / FILE).write_text(text)
    (directory / "labels.txt").write_text("cat\ncoffee mug\n")
    model = formats.read(str(directory))
    assert model is not None
    return model


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(StartError) as caught:
        read(tmp_path, text)
    return str(caught.value)


def test_options_of_the_server_follow_from_the_file(tmp_path: Path) -> None:
    model = read(tmp_path, FULL)
    assert model.options == {
        "num_parallel_workers": 3,
        "device_type": "CPU",
        "max_batch_delay_ms": 0.5,
        "preferred_batch_size": 8,
        "priority_levels": 2,
        "default_priority": 0,
        "level_queue_ms": {"1": 2000, "2": 2000},
        "level_queue_sizes": {"1": 16, "2": 16},
        "cache_mb": 64,
        "with_batch_dim": True,
    }
    assert (model.versions, model.max_batch_size) == ("1,3", 8)
    assert model.model_options == {"thread_num": 3, "enable_parallel": True}


def test_the_rate_limiter_names_shared_resources(tmp_path: Path) -> None:
    text = """instance_group [ { kind: KIND_CPU
      rate_limiter { resources { name: "R" global: true count: 2 } priority: 3 } } ]"""
    model = read(tmp_path, text)
    assert model.options["resources"] == {"R": 2}
    assert model.without_effect == ("instance_group.rate_limiter.priority",)
    text = text.replace("KIND_CPU", "KIND_GPU gpus: [ 0, 1 ]").replace("global: true", "")
    model = read(tmp_path, text)
    assert model.options["resources"] == {"R": 2}
    assert "instance_group.rate_limiter.resources of each GPU: they are global" in (
        model.without_effect
    )


def test_a_level_has_its_own_limits_or_the_default(tmp_path: Path) -> None:
    text = """max_batch_size: 4 dynamic_batching {
      priority_levels: 3 default_priority_level: 2 default_queue_policy { max_queue_size: 7 }
      priority_queue_policy { key: 1 value: { default_timeout_microseconds: 1500 } } }"""
    options = read(tmp_path, text).options
    assert (options["priority_levels"], options["default_priority"]) == (3, 2)
    assert options["level_queue_ms"] == {"1": 1}
    assert options["level_queue_sizes"] == {"2": 7, "3": 7}


def test_a_queue_with_a_size_alone_has_a_single_level(tmp_path: Path) -> None:
    options = read(tmp_path, "dynamic_batching { default_queue_policy { max_queue_size: 7 } }")
    assert options.options["priority_levels"] == 1
    assert options.options["level_queue_sizes"] == {"1": 7}


@pytest.mark.parametrize("levels", ["65", "2 default_priority_level: 3"])
def test_levels_that_do_not_exist_are_refused(tmp_path: Path, levels: str) -> None:
    problem = refusal(tmp_path, "dynamic_batching { priority_levels: " + levels + " }")
    assert "expected at most 64 levels, and one of them" in problem


@pytest.mark.parametrize("name", ["none.txt", "../resnet/../labels.txt", "/etc/hosts"])
def test_labels_are_a_file_of_the_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "labels.txt").write_text("secret")
    problem = refusal(tmp_path, FULL.replace("labels.txt", name))
    assert f"label_filename of 'scores' is '{name}', which is no file in" in problem


def test_tensors_have_the_batch_dimension_in_front(tmp_path: Path) -> None:
    model = read(tmp_path, FULL)
    assert model.inputs == (TensorSpec("pixels", np.dtype("float32"), (-1, 3, -1, -1)),)
    assert model.outputs == (
        TensorSpec("scores", np.dtype("float16"), (-1, 1000), labels=("cat", "coffee mug")),
        TensorSpec("label", TEXT, (-1, 1)),
    )


def test_fields_without_effect_are_named_once_by_the_highest(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).note("resnet") == (
        "resnet: without effect here, of Triton's config.pbtxt: input.format, "
        "instance_group.host_policy, optimization, "
        "parameters.other"
    )


def test_names_of_a_file_are_printed_without_line_breaks(tmp_path: Path) -> None:
    key = "a\\n" + "b" * 200
    text = read(tmp_path, f'parameters {{ key: "{key}" value: {{ string_value: "" }} }}').note(
        "net"
    )
    assert text.endswith("config.pbtxt: parameters.a?" + "b" * 87 + "…")


def test_a_file_that_is_followed_has_no_note(tmp_path: Path) -> None:
    assert read(tmp_path, 'backend: "onnxruntime" max_batch_size: 4').note("resnet") == ""


def test_without_batching_tensors_are_whole(tmp_path: Path) -> None:
    text = 'backend: "pytorch" input [ { name: "x" data_type: TYPE_INT64 dims: [ 1, 4 ] } ]'
    model = read(tmp_path, text)
    assert model.options == {"with_batch_dim": False}
    assert model.inputs == (TensorSpec("x", np.dtype("int64"), (1, 4)),)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("", ""),
        ("version_policy: { all {} }", "all"),
        ("version_policy: { latest {} }", "latest:1"),
        ("version_policy: { latest { num_versions: 2 } }", "latest:2"),
    ],
)
def test_version_policies_are_those_of_serve(tmp_path: Path, text: str, versions: str) -> None:
    assert read(tmp_path, text).versions == versions


def test_instances_on_gpus_are_workers_on_devices(tmp_path: Path) -> None:
    model = read(tmp_path, "instance_group [ { kind: KIND_GPU count: 2 gpus: [ 1, 0 ] } ]")
    assert model.options == {"device_type": "GPU", "device_ids": (0, 1)}
    assert model.without_effect == ("instance_group.count on GPUs: a GPU has one worker",)


def test_the_backend_openvino_runs_onnx_files_too(tmp_path: Path) -> None:
    model = read(tmp_path, 'backend: "openvino" default_model_filename: "net.onnx"')
    assert model.options == {"backend": "openvino"}
    assert (model.formats, model.model_file) == (("openvino", "onnx"), "net.onnx")


def test_samples_to_warm_up_are_read(tmp_path: Path) -> None:
    (tmp_path / "resnet" / "warmup").mkdir(parents=True)
    (tmp_path / "resnet" / "warmup" / "raw").write_bytes(bytes(8))
    model = read(
        tmp_path,
        """max_batch_size: 4 model_warmup [ { name: "first" batch_size: 2 count: 3
        inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 2 ] random_data: true } }
        inputs { key: "y" value: { data_type: TYPE_INT64 input_data_file: "raw" } } } ]""",
    )
    inputs = {
        "x": WarmUpInput("float32", (2,), is_random=True),
        "y": WarmUpInput("int64", (), file=str(tmp_path / "resnet" / "warmup" / "raw")),
    }
    assert model.warm_up == (WarmUpSample("first", inputs, 2, 3),)


SEQUENCES = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
sequence_batching {
  oldest { max_candidate_sequences: 7 max_queue_delay_microseconds: 100 }
  state {
    input_name: "sum" output_name: "next" data_type: TYPE_FP32 dims: 3
    initial_state { name: "zeros" data_type: TYPE_FP32 dims: 3 zero_data: true }
  }
}
"""


FLAG = "control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }"
STATE = "state { input_name: 's' output_name: 't' }"


def controls(*rows: str, more: str = "") -> str:
    texts = [f"control_input {{ {row} }}" for row in rows]
    return f"sequence_batching {{ {' '.join([*texts, more])} }}"


def test_control_inputs_are_inputs_that_the_server_fills(tmp_path: Path) -> None:
    number = "name: 'n' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING }"
    ready = "name: 'r' control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ -1, 0.5 ] }"
    end = "name: 'e' control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 3, 2 ] }"
    start = f"name: 's' {FLAG}"
    text = controls(start, number, ready, end, more="direct {}")
    model = read(tmp_path, text + 'input { name: "x" data_type: TYPE_FP32 dims: 3 }')
    assert model.controls == (
        ControlInput("s", "start", "bool", (0, 1)),
        ControlInput("n", "id", "str"),
        ControlInput("r", "ready", "float32", (-1, 0.5)),
        ControlInput("e", "end", "int32", (3, 2)),
    )
    assert {spec.name: spec.dtype for spec in model.inputs} == {
        "x": np.dtype("float32"),
        "s": np.dtype(bool),
        "n": TEXT,
        "r": np.dtype("float32"),
        "e": np.dtype("int32"),
    }
    assert model.options == {"sequence_idle_seconds": 1.0, "with_batch_dim": False}
    assert model.without_effect == ("sequence_batching.direct",)


def test_states_of_sequences_are_inputs_and_outputs_of_the_model(tmp_path: Path) -> None:
    model = read(tmp_path, SEQUENCES)
    assert model.options == {
        "with_batch_dim": True,
        "states": {"sum": "next"},
        "sequence_idle_seconds": 1.0,
        "max_sequences": 7,
    }
    assert [spec.name for spec in (*model.inputs, *model.outputs)] == ["x", "sum", "y", "next"]
    assert model.without_effect == ("sequence_batching.oldest.max_queue_delay_microseconds",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_sze: 8", 'config.pbtxt:1:1 : The message "ModelConfig" has no field named'),
        ("max_batch_size: {", "config.pbtxt:1:17"),
        ('name: "other"', "name is 'other', expected 'resnet', the name of its directory"),
        ('backend: "python"', "backend 'python' is not run here: model.py is not run"),
        ('backend: "mine"', "backend 'mine' is not run here: known are onnxruntime"),
        ('platform: "tensorrt_plan"', "serve the ONNX file"),
        ('platform: "ensemble" ensemble_scheduling {}', "platform 'ensemble' is not run here"),
        ("sequence_batching {}", "sequence_batching has no state with input_name"),
        ("sequence_batching { state { input_name: 'a' } }", "has no state with input_name and"),
        (controls("name: 'a'"), "control_input 'a' has 0 fields control, expected a name and one"),
        (controls("control { bool_false_true: [ 0, 1 ] }"), "control_input '' has 1 fields"),
        (controls("name: 'a' control {}"), "'a': CONTROL_SEQUENCE_START has no values, expected"),
        (controls("name: 'a' control { kind: CONTROL_SEQUENCE_END int32_false_true: 1 }"),
         "'a': CONTROL_SEQUENCE_END has int32_false_true: [1], expected two values, for false and"),
        (controls("name: 'a' control { data_type: TYPE_INT8 bool_false_true: [ false, true ] }"),
         "has bool_false_true: [False, True], data_type: TYPE_INT8, expected two values"),
        (controls("name: 'a' control { bool_false_true: [0, 1] fp32_false_true: [0, 1] }"),
         "has fp32_false_true: [0.0, 1.0], bool_false_true: [False, True], expected two values"),
        (controls("name: 'a' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 }"),
         "CONTROL_SEQUENCE_CORRID has data_type TYPE_FP32, expected one of TYPE_UINT64, "),
        (controls("name: 'a' control { kind: CONTROL_SEQUENCE_CORRID }"), "has data_type TYPE_INV"),
        (controls("name: 'a' control { kind: CONTROL_SEQUENCE_SLOT }"),
         'The type "ModelSequenceBatching.Control.Kind" has no value named CONTROL_SEQUENCE_SLOT'),
        (controls(f"name: 'a' {FLAG}", f"name: 'b' {FLAG}"),
         "control_input 'b' has the kind of control_input 'a', expected another one"),
        (controls(f"name: 'a' {FLAG}", f"name: 'a' {FLAG.replace('START', 'END')}"),
         "control_input 'a' has the name of control_input 'a', expected another one"),
        (controls(f"name: 's' {FLAG}", more=STATE), "control_input 's' has the name of a state"),
        (controls(f"name: 's' {FLAG}") + "input { name: 's' }",
         "control_input 's' has the name of an input of clients, expected another one"),
        ("sequence_batching { oldest { preserve_ordering: true } }",
         "oldest.preserve_ordering is not supported: answers of a sequence keep their order"),
        ("sequence_batching { iterative_sequence: true }", "iterative_sequence is not supported"),
        ("sequence_batching { state { initial_state { data_file: 'x' } } }",
         "initial_state.data_file is not supported: states of a file begin with zeros"),
        ("input { reshape { shape: [ ] } }", "input.reshape is not supported"),
        ("input { allow_ragged_batch: true }", "input.allow_ragged_batch is not supported"),
        ("model_transaction_policy { decoupled: true }", "decoupled is not supported"),
        ('model_operations { op_library_filename: "x.so" }', "model_operations is not supported"),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", "several kinds"),
        ("instance_group { kind: KIND_CPU count: 65 }", "num_parallel_workers would be 65"),
        ('default_model_filename: "../x.onnx"', "expected the name of a file"),
        ("version_policy { specific { versions: [ 0 ] } }", "expected numbers > 0"),
        ("dynamic_batching { default_queue_policy { timeout_action: DELAY "
         "default_timeout_microseconds: 1 } }", "timeout_action DELAY is not supported"),
        ('parameters { key: "intra_op_thread_count" value: { string_value: "many" } }',
         "intra_op_thread_count is 'many', expected a number up to 9999"),
        ('model_warmup { inputs { key: "x" value: { data_type: TYPE_FP32 dims: 9999999999 } } }',
         "at most 1073741824 are allowed"),
        ('model_warmup { inputs { key: "x" value: { data_type: TYPE_STRING } } }',
         "expected a type of numbers"),
        ('model_warmup { inputs { key: "x" value: { data_type: TYPE_FP32 '
         'input_data_file: "../config.pbtxt" } } }', "which is no file in"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_followed_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_a_large_file_is_not_parsed(tmp_path: Path) -> None:
    text = refusal(tmp_path, "#" * (MAX_SIZE + 1))
    assert text == f"config.pbtxt has more than {MAX_SIZE} bytes"


def test_nested_messages_without_end_are_an_error_not_a_crash(tmp_path: Path) -> None:
    assert "config.pbtxt:1:" in refusal(tmp_path, "input {" * 100_000)


def test_a_file_of_other_bytes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "resnet").mkdir()
    (tmp_path / "resnet" / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(StartError, match="is not UTF-8 text"):
        formats.read(str(tmp_path / "resnet"))


def test_a_servable_config_replaces_the_description(tmp_path: Path) -> None:
    read(tmp_path, FULL)
    (tmp_path / "resnet" / "servable_config.py").touch()
    assert formats.read(str(tmp_path / "resnet")) is None


def test_options_of_the_operator_win(tmp_path: Path) -> None:
    model = read(tmp_path, FULL)
    options = ServableOptions(max_batch_delay_ms=3, num_parallel_workers=1)
    values = {name: getattr(options, name) for name in model.options}
    assert formats.complete(model, values) == {
        "device_type": "CPU",
        "preferred_batch_size": 8,
        "priority_levels": 2,
        "default_priority": 0,
        "level_queue_ms": {"1": 2000, "2": 2000},
        "level_queue_sizes": {"1": 16, "2": 16},
        "cache_mb": 64,
        "with_batch_dim": True,
    }
