"""What llm-serving's configuration files become: its yaml files and its serving_config.py."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.mindir.cut import RankMindIR
from mindspore_serving.servable.literals import read_assignments
from mindspore_serving.server.llm_config import LlmConfig, read_llm_config

EXAMPLES = Path(__file__).parents[2] / "examples" / "llm"

WHOLE: dict[str, Any] = {
    "model_path": {
        "prefill_model": ["model"],
        "decode_model": ["model"],
        "argmax_model": "argmax.mindir",
        "topk_model": "topk.mindir",
        "prefill_ini": ["prefill.ini"],
        "decode_ini": ["decode.ini"],
        "post_model_ini": "post.ini",
    },
    "model_config": {
        "model_name": "llama_7b",
        "max_generate_length": 8192,
        "end_token": 2,
        "seq_length": [512, 1024, 2048],
        "vocab_size": 32000,
        "prefill_batch_size": [1],
        "decode_batch_size": [16, 1, 4],
        "zactivate_len": [512],
        "model_type": "dyn",
        "seq_type": "static",
        "batching_strategy": "continuous",
        "current_index": False,
        "page_attention": True,
        "model_dtype": "DataType.FLOAT16",
        "pad_token_id": 0,
        "backend": "ge",
    },
    "serving_config": {
        "agent_ports": [9820],
        "agent_ip": "localhost",
        "start_device_id": 0,
        "server_ip": "127.0.0.1",
        "server_port": 9800,
        "enable_host_post_sampling": False,
    },
    "pa_config": {"num_blocks": 224, "block_size": 128, "decode_seq_length": 1024},
    "tokenizer": {"type": "LlamaTokenizer", "vocab_file": "tokenizer.model"},
    "basic_inputs": {"type": "LlamaBasicInputs"},
    "extra_inputs": {"type": "LlamaExtraInputs"},
    "warmup_inputs": {"type": "LlamaWarmupInputs"},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


def read(place: Path, **changes: dict[str, Any]) -> LlmConfig:
    """The whole configuration with `changes` in its blocks, written and read."""
    blocks = {name: {**keys, **changes.pop(name, {})} for name, keys in WHOLE.items()}
    (place / "config.yaml").write_text(yaml.safe_dump({**blocks, **changes}))
    return read_llm_config(place / "config.yaml")


def test_a_whole_yaml_file_is_a_model_and_an_address(place):
    found = read(place)
    assert found.name == "llama_7b"
    assert found.directory == place / "model"
    assert found.runtime == "openvino"
    assert found.address == "127.0.0.1:9800"
    assert found.agents == ("localhost:9820",)
    assert found.form == "bare"
    assert found.options == {
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
    }


def test_keys_without_effect_are_named(place):
    unused = read(place).unused
    assert "model_config.end_token" in unused
    assert "pa_config.num_blocks" in unused
    assert "tokenizer.type" in unused
    assert "warmup_inputs.type" in unused
    assert not {"model_config.model_name", "serving_config.server_port"} & set(unused)


def test_the_start_configuration_has_the_files_name_and_options(place):
    started = read(place).to_start_config()
    assert started.servable_directory == str(place)
    assert (started.servable_name, started.alias) == ("model", "llama_7b")
    assert started.llm_options["runtime"] == "openvino"
    assert started.llm_options["max_num_seqs"] == 16


@pytest.mark.parametrize(
    ("model", "paging", "longest"),
    [
        ({"seq_length": [], "max_generate_length": None, "page_attention": False}, {}, None),
        ({"seq_length": 256, "page_attention": False}, {}, 256),
        ({"seq_length": [100, 200], "max_generate_length": 150}, {}, 150),
        ({"seq_length": [9000], "max_generate_length": None}, {"decode_seq_length": 512}, 512),
    ],
)
def test_the_smallest_length_of_the_file_is_max_model_len(place, model, paging, longest):
    found = read(place, model_config=model, pa_config=paging)
    assert found.options.get("max_model_len") == longest


def test_a_large_batch_makes_large_steps(place):
    found = read(place, model_config={"decode_batch_size": [600]})
    assert found.options["max_num_batched_tokens"] == 600


def test_runtime_and_engine_options_may_be_said(place):
    given = {"runtime": "torch", "options": {"quantization": "int8", "max_num_seqs": 3}}
    found = read(place, model_config=given)
    assert found.runtime == "torch"
    assert found.options["quantization"] == "int8"
    assert found.options["max_num_seqs"] == 3


def test_the_form_of_streams_may_be_said(place):
    assert read(place, serving_config={"stream_form": "r21"}).form == "r21"
    with pytest.raises(StartError, match="stream_form is 'sse', expected 'r21' or 'bare'"):
        read(place, serving_config={"stream_form": "sse"})


def test_mindir_files_select_the_mindir_runtime(place):
    model = place / "model"
    paths = {"prefill_model": ["model/prefill.mindir"], "decode_model": ["model/decode.mindir"]}
    with pytest.raises(StartError, match=r"has no prefill\.mindir and decode\.mindir"):
        read(place, model_path=paths)
    (model / "prefill.mindir").write_bytes(b"\n")
    (model / "decode.mindir").write_bytes(b"\n")
    found = read(place, model_path=paths)
    assert (found.directory, found.runtime) == (model, "mindir")
    assert read(place).runtime == "mindir"  # the directory, by what is in it


def test_mindir_files_of_ranks_are_a_model_over_as_many_ranks(place):
    model = place / "model"
    for rank in (0, 1):
        own = model / f"rank_{rank}"
        own.mkdir()
        RankMindIR(rank, 2, "export").write(own)
        for name in ("prefill.mindir", "decode.mindir"):
            (own / name).write_bytes(b"\n")
    paths = {
        f"{name}_model": [f"model/rank_{rank}/{name}.mindir" for rank in (0, 1)]
        for name in ("prefill", "decode")
    }
    found = read(place, model_path=paths)
    assert (found.directory, found.runtime, found.ranks) == (model, "mindir", 2)
    assert found.options["pipeline_parallel"] == 2
    found = read(place, model_path=paths, model_config={"runtime": "agents"})
    assert (found.directory, found.runtime, found.ranks) == (model, "agents", 2)
    assert "pipeline_parallel" not in found.options
    paths["decode_model"].reverse()
    with pytest.raises(StartError, match="a file of rank 0 is in .*rank_1, expected it in"):
        read(place, model_path=paths)


def test_with_kbk_the_model_is_where_its_own_configuration_is(place):
    (place / "model" / "run_llama.yaml").write_text("run_mode: predict\n")
    paths = {"prefill_model": ["nowhere.mindir"], "decode_model": ["nowhere.mindir"]}
    for path in ("model", "model/run_llama.yaml"):
        model = {"backend": "kbk", "model_cfg_path": path}
        assert read(place, model_path=paths, model_config=model).directory == place / "model"


@pytest.mark.parametrize("files", [["model/a.om"], ["model/a.om", "model/a.om"]])
def test_offline_models_of_ascend_are_refused_with_advice(place, files):
    (place / "model" / "a.om").write_bytes(b"IMOD")
    with pytest.raises(StartError, match="model/a.om.* is an offline model .* serve the MindIR"):
        read(place, model_path={"prefill_model": files, "decode_model": files})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model_path": {"prefill_model": ["nowhere"]}},
            "the model is 'nowhere', but .* has no config.json; expected the directory of a "
            "Hugging Face model",
        ),
        ({"model_path": {"prefill_model": []}}, "model_path.prefill_model is missing"),
        (
            {"model_path": {"prefill_model": ["a", "b"], "decode_model": ["a", "b"]}},
            "model_path: .*a does not exist, expected a MindIR file that export_mindir wrote",
        ),
        (
            {"model_path": {"decode_model": ["a", "b"]}},
            "has 1 prefill_model and 2 decode_model, expected one per rank",
        ),
        ({"model_path": {"prefill_model": 5}}, "prefill_model is 5, expected a list of paths"),
        ({"model_config": {"model_name": None}}, "model_config.model_name is None"),
        (
            {"model_config": {"seq_length": ["x"]}},
            "model_config.seq_length is 'x', expected an int",
        ),
        ({"model_config": {"backend": "kbk"}}, "model_config.model_cfg_path is None"),
        ({"serving_config": {"server_port": "x"}}, "serving_config.server_port is 'x'"),
        ({"serving_config": {"agent_ports": 5}}, "agent_ports is 5, expected a list of ports"),
        ({"serving_config": 3}, "serving_config is 3, expected keys and values"),
    ],
)
def test_invalid_keys_are_named_with_the_file(place, changes, words):
    blocks = dict(changes)
    if blocks.get("serving_config") == 3:
        whole = {**WHOLE, "serving_config": 3}
        (place / "config.yaml").write_text(yaml.safe_dump(whole))
        with pytest.raises(StartError, match=f"^{place / 'config.yaml'}: {words}"):
            read_llm_config(place / "config.yaml")
        return
    with pytest.raises(StartError, match=words) as caught:
        read(place, **blocks)
    assert str(caught.value).startswith(f"{place / 'config.yaml'}: ")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.yaml", "a: [", "this is no yaml"),
        ("config.yaml", "a: " + "[" * 500_000, "this is no yaml, line 1: it is nested too deeply"),
        ("config.yaml", "a:\n" + "- " * 5000, "this is no yaml: it is nested too deeply"),
        ("config.yaml", "a: 2026-99-99", "a value cannot be read .* month must be in 1..12"),
        ("config.yaml", "text", "the file holds str, expected blocks of keys"),
        ("config.py", "a = (", "this is not Python"),
        ("config.py", "Baseconfig = 3", "Baseconfig and AgentConfig are no EasyDict"),
        ("missing.yaml", None, "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(StartError, match=words):
        read_llm_config(tmp_path / name)


FIRST_RELEASE = """
import os
from easydict import EasyDict
from serving_utils.register import import_all_modules_for_register
import_all_modules_for_register()
os.system("touch ran")

SERVER_APP_HOST = 'localhost'
SERVER_APP_PORT = 9811
device = 6
prefill_model_path = ["model/prefill.mindir"]
decode_model_path = ["model/decode.mindir"]
argmax_model = ["argmax.mindir"]
topk_model = ["topk.mindir"]
ctx_path = 'prompt.ini'
tokenizer_path = os.path.join('a', 'tokenizer.model')

Baseconfig = EasyDict({
    'frequency_penalty': 1.5,
    'max_generate_length': 4096,
    'end_token': 2,
    'seq_length': [310, 600, 1024, 2048],
    'batch_size': 8,
    'dyn_batch_size': [1, 8, 16],
    'batching_strategy': 'continuous',
    'zactivate_len': [512, 1024, 2048, 4096],
})

AgentConfig = EasyDict({
    'ctx_setting': ctx_path,
    'prefill_model': prefill_model_path,
    'decode_model': decode_model_path,
    'argmax_model': argmax_model,
    'topk_model': topk_model,
    'AgentPorts': [9820, 9821],
    'device_start': device,
})
AgentIP: str = "localhost"
ModelName: str = "llama_dyn"


def get_inputs_custom(input_ids=None):
    return input_ids
"""


def test_the_first_releases_python_file_is_read_and_not_run(place, monkeypatch):
    monkeypatch.chdir(place)
    for name in ("prefill.mindir", "decode.mindir"):
        (place / "model" / name).write_bytes(b"\n")
    (place / "serving_config.py").write_text(FIRST_RELEASE)
    found = read_llm_config("serving_config.py")
    assert found.name == "llama_dyn"
    assert (found.directory, found.runtime) == (place / "model", "mindir")
    assert found.address == "localhost:9811"
    assert found.agents == ("localhost:9820", "localhost:9821")
    assert found.form == "r21"
    assert found.options["max_model_len"] == 2048
    assert found.options["max_num_seqs"] == 16
    assert "model_config.frequency_penalty" in found.unused
    assert not (place / "ran").exists()


def test_only_literal_values_of_a_python_file_are_known():
    source = (
        "a = [1, -2, 'x' + 'y']\nb = dict(c=a[2], d=(True, None))\ne: int = b['c']\n"
        "f = EasyDict({'g': 3})\nh = f.g\ni = open('file')\nj = i\nk = a\nk = f(1)\nl: int\n"
    )
    assert read_assignments(source) == {
        "a": [1, -2, "xy"],
        "b": {"c": "xy", "d": [True, None]},
        "e": "xy",
        "f": {"g": 3},
        "h": 3,
    }


@pytest.mark.parametrize("name", ["config/serving_config.py", "configs/tiny_llm.yaml"])
def test_the_examples_that_run_as_they_are_can_be_read(name):
    found = read_llm_config(EXAMPLES / name)
    assert found.directory == EXAMPLES.parent / "tiny_llm" / "model"
    assert found.options["max_model_len"] == 512


@pytest.mark.parametrize(
    "path", sorted((EXAMPLES / "configs").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_example_is_understood_but_for_where_its_model_is(path):
    blocks = yaml.safe_load(path.read_text())
    if "/path/to/" not in path.read_text():
        assert read_llm_config(path).name == blocks["model_config"]["model_name"]
        return
    with pytest.raises(StartError, match=r"the model is '/path/to/.* has no config\.json"):
        read_llm_config(path)
