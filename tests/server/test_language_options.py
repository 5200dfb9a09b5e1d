"""The options of language models are checked before a process starts."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.cli import main
from mindspore_serving.core.tasks import TASK_OPTIONS
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm import LLM
from mindspore_serving.llm.catalog import ENGINES, RUNTIMES
from mindspore_serving.llm.config import OPTIONS, EngineConfig
from mindspore_serving.llm.options import OF_VOICES_ALONE
from mindspore_serving.server.config import ServableStartConfig, merge_config

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec")
_started: list[str] = []
sys.addaudithook(lambda event, _: _started.append(event) if event in STARTS else None)

WRONG = [
    (
        {"graph_mode": True},
        "the option 'graph_mode' was removed in 3.0: the runtime 'mindspore' al",
    ),
    ({"kv_cache_dtyp": "u8"}, "there is no option 'kv_cache_dtyp'; did you mean 'kv_cache_dtype'?"),
    ({"kv_cache_dtype": 8}, "kv_cache_dtype is 8, expected a text"),
    ({"kv_cache_dtype": "u4"}, "kv_cache_dtype is 'u4', the openvino runtime accepts auto, f32, "),
    ({"kv_cache_dtype": "u8", "runtime": "torch"}, "'u8', the torch runtime accepts auto, f32, "),
    ({"kv_cache_dtype": "u8", "engine": "genai"}, "'genai' has no option kv_cache_dtype, expected"),
    ({"max_audios": -1}, "max_audios is -1, expected an int of 0 to 64"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0, expected an int of 1 to 4096"),
    ({"max_num_seqs": True}, "max_num_seqs is True, expected an int of 1 to 4096"),
    ({"embeddings": "yes"}, "embeddings is 'yes', expected True or False"),
    (
        {"deterministic": True, "runtime": "openvino"},
        "runtime 'openvino' has no deterministic, expected one of torch",
    ),
    ({"runtime": "opnvino"}, "runtime is 'opnvino', expected one of .*; did you mean 'openvino'?"),
    ({"engine": "vlm"}, "engine is 'vlm', expected one of .*; did you mean 'vllm'?"),
    ({"engine_options": {"a": 1}}, "engine_options has 'a', but engine 'ours' has no options"),
    ({"truncate": True}, "'truncate' is an option of models that do not generate"),
]
IDS = [text[:24] for _, text in WRONG]
# The command line looks for the library of an engine first, and knows names of runtimes itself.
IN_A_FILE = [(options, text) for options, text in WRONG[:9] if "engine" not in options]


@pytest.fixture
def no_process() -> Iterator[None]:
    """Watch that the interpreter starts none."""
    _started.clear()
    yield
    assert _started == []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a language model without weights, which can be no more than looked at."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return tmp_path


def test_the_watch_sees_a_process() -> None:
    _started.clear()
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert "subprocess.Popen" in _started


@pytest.mark.parametrize(("options", "text"), WRONG, ids=IDS)
@pytest.mark.usefixtures("no_process")
def test_a_start_up_script_is_refused(directory: Path, options: dict, text: str) -> None:
    with pytest.raises(ServingError, match=text):
        server.start_servables(ServableStartConfig(str(directory), "model", llm_options=options))


@pytest.mark.parametrize(("options", "text"), IN_A_FILE, ids=[text[:24] for _, text in IN_A_FILE])
@pytest.mark.usefixtures("no_process")
def test_a_configuration_file_is_refused(
    directory: Path, options: dict, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "server.yaml"
    served = {"path": "model", "runtime": "openvino", "llm_option": {**options}}
    served["runtime"] = served["llm_option"].pop("runtime", "openvino")
    file.write_text(json.dumps({"servables": [served]}))
    assert main(["serve", "--config", str(file)]) != 0
    assert re.search(text, capsys.readouterr().err)


@pytest.mark.usefixtures("no_process")
def test_words_of_the_command_line_are_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory / "model")
    assert main(["serve", path, "--llm-option", "kv-cache-dtyp=u8"]) != 0
    assert (
        "there is no option 'kv_cache_dtyp'; did you mean 'kv_cache_dtype'?"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("no_process")
def test_ranks_are_not_started_for_a_wrong_option(directory: Path) -> None:
    for options in ({"kv_cache_dtype": "u4"}, {"deterministic": True}, {"dtipe": "f32"}):
        with pytest.raises(ServingError, match=next(iter(options))):
            LLM(directory / "model", tensor_parallel=2, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "http://host/v1", "retry": 1}, "no option 'retry' .*; did you mean 'retries'?"),
        ({"url": "host"}, "the upstream's url is 'host', expected http"),
        ({"url": "http://host/v1", "retries": 99}, "retries"),
    ],
)
def test_another_servers_options_are_refused(options: dict, text: str) -> None:
    with pytest.raises(InvalidInputs, match=text):
        ServableStartConfig(".", "far", llm_options={"engine": "openai", "engine_options": options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"default_temperature": -1}, "default_temperature is -1, expected a number from 0 to 100"),
        ({"default_top_p": 0}, "default_top_p is 0, expected a number from over 0 to 1"),
        ({"default_top_k": 0.5}, "default_top_k is 0.5, expected an int >= 0"),
        ({"default_max_tokens": 0}, "default_max_tokens is 0, expected an int >= 1"),
        ({"default_temprature": 1}, "'default_temprature'; did you mean 'default_temperature'?"),
    ],
)
@pytest.mark.parametrize(
    "engine", [{}, {"engine": "openai", "engine_options": {"url": "http://host/v1"}}]
)
def test_a_wrong_default_of_sampling_is_refused(
    directory: Path, options: dict, text: str, engine: dict
) -> None:
    with pytest.raises(InvalidInputs, match=text):
        ServableStartConfig(str(directory), "model", llm_options={**engine, **options})


def test_a_model_of_another_server_has_few_further_options(directory: Path) -> None:
    options = {"engine": "openai", "engine_options": {"url": "http://host/v1"}, "dtype": "f32"}
    with pytest.raises(InvalidInputs, match="no option dtype, expected any of max_model_len"):
        ServableStartConfig(str(directory), "far", llm_options=options)


def test_options_of_tasks_need_a_model_with_a_task(directory: Path) -> None:
    names = ["BertForSequenceClassification"]
    (directory / "model" / "config.json").write_text(json.dumps({"architectures": names}))
    made = ServableStartConfig(str(directory), "model", llm_options={"truncate": True, "top_k": 2})
    assert merge_config([made])[0].llm_options == {"truncate": True, "top_k": 2}
    with pytest.raises(InvalidInputs, match="top_k is -1, expected an int >= 0"):
        ServableStartConfig(str(directory), "model", llm_options={"top_k": -1})


def test_a_servable_with_a_configuration_takes_its_options_there(directory: Path) -> None:
    (directory / "model" / "servable_config.py").write_text("")
    made = ServableStartConfig(str(directory), "model", llm_options={"dtype": "f32"})
    with pytest.raises(ServingError, match="options dtype do not apply; pass them to declare"):
        merge_config([made])


DECLARED = [
    (
        "kv_cache_dtyp='u8'",
        "line 2: there is no option 'kv_cache_dtyp'; did you mean 'kv_cache_dtype'?",
    ),
    ("kv_cache_dtyp=computed()", "there is no option 'kv_cache_dtyp'"),
    ("truncate=True", "there is no option 'truncate'"),
    ("max_num_seqs=0", "line 2: max_num_seqs is 0, expected an int of 1 to 4096"),
    ("runtime='torch', kv_cache_dtype='u8'", "'u8', the torch runtime accepts auto, f32, "),
    ("engine_options={'a': 1}", "engine_options has 'a', but engine 'ours' has no options"),
    ("engine='vlm'", "engine is 'vlm', expected one of .*; did you mean 'vllm'?"),
]


@pytest.mark.parametrize(("options", "text"), DECLARED)
@pytest.mark.usefixtures("no_process")
def test_options_in_servable_config_are_refused_before_a_process_starts(
    tmp_path: Path, options: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    source = f"from mindspore_serving.server import register\nregister.declare_llm('m', {options})"
    (tmp_path / "model" / "servable_config.py").write_text(source)
    with pytest.raises(ServingError, match=text):
        server.start_servables(ServableStartConfig(str(tmp_path), "model"))
    assert main(["serve", str(tmp_path / "model")]) == 1
    assert re.search(text, capsys.readouterr().err)


def test_options_that_are_computed_are_left_to_the_worker(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "servable_config.py"
    config.write_text("declare_llm('m', max_num_seqs=n())\nif x:\n    declare_llm('m', no=1)")
    assert len(merge_config([ServableStartConfig(str(tmp_path), "model")])) == 1


def test_a_row_says_who_takes_an_option() -> None:
    """No name in it is one that does not exist."""
    places = {*ENGINES, *RUNTIMES, "transformers", "encoders"}
    protocols = set(next(iter(TASK_OPTIONS.values())).aliases)
    for row in OPTIONS.values():
        without = {name for name, alias in row.aliases.items() if alias is None}
        assert set(row.aliases) - protocols <= places
        is_of_voices = row.name == OF_VOICES_ALONE
        assert is_of_voices or not set(RUNTIMES) <= without, f"no runtime takes {row.name}"


def test_values_that_a_runtime_accepts_include_the_defaults() -> None:
    for name, runtime in RUNTIMES.items():
        for option, values in runtime.accepts.items():
            assert OPTIONS[option].default in values, (name, option)
            for value in values:
                EngineConfig(**{option: value})


def test_the_table_imports_no_library() -> None:
    code = (
        "import sys; import mindspore_serving.llm.options; "
        "sys.exit(bool({'numpy', 'torch', 'openvino'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
