"""`--engine vllm` with a plugin for Ascend, by packages that stand in: no device ran this."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import cli, loading, server
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.upstream.vllm_output import EngineOutput
from mindspore_serving.llm.upstream.vllm_plugins import (
    PLUGINS,
    VARIABLES,
    check_variables,
    check_version,
    describe,
    find_plugin,
)
from mindspore_serving.llm.upstream.vllm_server import KEY, LocalModel, VllmServer, open_server
from mindspore_serving.llm.vllm_options import to_words
from mindspore_serving.process.interpreter import CACHE, Interpreter
from tests.e2e.conftest import started, stopped
from tests.e2e.harness import ROOT, config
from tests.engines.ascend_stand_in import (
    SCRIPT,
    SEEN,
    checkpoint,
    environment_with,
    write_packages,
)
from tests.engines.shown import commands, in_place
from tests.engines.test_engine_docs import ask
from tests.engines.test_engine_docs import serving as serve

__all__ = ["started", "stopped"]
PAGE = "docs/engines_ascend.md"
SERVE = commands("serve", PAGE)
ASCEND, MINDSPORE = PLUGINS
LOADS = """\
(EngineCore_DP0 pid=11) INFO [core.py:1] Initializing a V1 LLM engine (v0.23.0) with config: x
(Worker_TP1 pid=12) INFO [model_runner.py:1] Starting to load model /models/qwen
"""
FAILS = """\
(Worker_TP1 pid=12) ERROR [x.py:1] RuntimeError: EL0005: The resources are busy.
(EngineCore_DP0 pid=11) ERROR [x.py:1] Exception: WorkerProc initialization failed
exit 1
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory from which this process imports, and those that it starts."""
    directory = tmp_path / "packages"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setenv(SCRIPT, str(tmp_path / "script"))
    monkeypatch.setenv(SEEN, str(tmp_path / "seen"))
    monkeypatch.setenv(KEY, "a key")
    (tmp_path / "script").write_text(LOADS)
    return directory


@pytest.fixture
def model(packages: Path) -> Callable[..., LocalModel]:
    """Makes the model for a server of vllm-ascend, with options of the engine."""
    write_packages(packages, "vllm", "vllm-ascend", "vllm-mindspore")
    directory = checkpoint(packages.parent / "qwen")

    def make(llm: EngineConfig | None = None, plugin: Any = ASCEND, **options: Any) -> LocalModel:
        return LocalModel(plugin, directory, "qwen", llm or EngineConfig(), options)

    return make


def seen(packages: Path) -> dict[str, Any]:
    return dict(json.loads((packages.parent / "seen").read_text()))


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_the_plugin_of_the_interpreter_is_found(plugin: Any, packages: Path) -> None:
    assert find_plugin(is_ascend=False) is None
    write_packages(packages, "vllm", plugin.name)
    assert find_plugin(is_ascend=True) is plugin
    assert describe(plugin).startswith(f"{plugin.name} 0.23.0 (vllm 0.23.0")


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ((), "has no vllm-ascend or vllm-mindspore: install one of them"),
        (("vllm",), "has no vllm-ascend or vllm-mindspore: install one of them"),
        (("vllm-ascend",), "has vllm-ascend without vllm"),
        (("vllm", "vllm-ascend", "vllm-mindspore"), "has both .*: uninstall one"),
    ],
)
def test_an_interpreter_that_does_not_do_is_refused(
    names: tuple[str, ...], error: str, packages: Path
) -> None:
    write_packages(packages, *names)
    with pytest.raises(StartError, match=error):
        find_plugin(is_ascend=True)


@pytest.mark.parametrize(("plugin", "fits"), [(ASCEND, True), (MINDSPORE, False)], ids=str)
def test_another_version_of_vllm_is_reported(
    plugin: Any, fits: bool, packages: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_packages(packages, "vllm", plugin.name)
    check_version(plugin)
    text = f"{plugin.name} 0.23.0 belongs to vllm 0.11.0, not 0.23.0"
    assert (text in capfd.readouterr().err) is not fits


def test_variables_of_the_plugin_are_passed_and_keys_are_not_shown() -> None:
    variables = {"HCCL_IF_IP": "10.0.0.1", "VLLM_API_KEY": "secret", "HOME": "/root"}
    assert check_variables(ASCEND, variables) == ["HCCL_IF_IP=10.0.0.1"]


def test_variables_of_the_other_plugin_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    assert check_variables(MINDSPORE, {"VLLM_ASCEND_ENABLE_NZ": "1"}) == []
    assert "vllm-mindspore does not read it" in capfd.readouterr().err


def test_a_model_backend_that_does_not_exist_is_refused() -> None:
    error = "VLLM_MS_MODEL_BACKEND is 'native', expected one of MindFormers, Native, MindOne"
    with pytest.raises(StartError, match=error):
        check_variables(MINDSPORE, {"VLLM_MS_MODEL_BACKEND": "native"})


def test_no_row_of_variables_hides_another_row() -> None:
    for number, row in enumerate(VARIABLES):
        assert not [one for one in VARIABLES[:number] if one.matches(row.name.rstrip("*"))]


def test_values_are_words_of_the_command_line() -> None:
    arguments = {"a_b": 1, "c": True, "d": False, "e": {"f": [1]}, "g": ["h", 2], "i": "j k"}
    expected = ["--a-b", "1", "--c", "--no-d", "--e", '{"f": [1]}', "--g", "h", "2", "--i", "j k"]
    assert to_words(arguments) == expected


def test_the_entries_of_cann_stay_in_the_path_of_another_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setenv("ASCEND_HOME_PATH", "/cann/latest")
    monkeypatch.setenv("PYTHONPATH", "/ours:/cann/latest/python/site-packages")
    path = Interpreter("/opt/python", (3, 11)).environment({})["PYTHONPATH"].split(os.pathsep)
    assert path[1:] == ["/cann/latest/python/site-packages"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"llm": EngineConfig(adapters={"a": "/a"})}, "vllm-ascend has no option adapters"),
        ({"port": 1}, "engine option 'port' is set by the server"),
    ],
)
def test_options_without_effect_are_refused(
    options: dict[str, Any], error: str, model: Callable[..., LocalModel]
) -> None:
    with pytest.raises(StartError, match=error):
        model(**options).words(1)


def test_a_device_of_another_kind_is_refused(model: Callable[..., LocalModel]) -> None:
    with pytest.raises(InvalidInputs, match="device is 'cuda:1'.*expected npu"):
        open_server(model(EngineConfig(device="cuda:1")), lambda: None)


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (ASCEND, ["serve"]),
        (MINDSPORE, ["--model"]),
    ],
    ids=[plugin.name for plugin in PLUGINS],
)
def test_the_server_is_started_by_the_command_of_the_plugin(
    plugin: Any, words: list[str], packages: Path, model: Callable[..., LocalModel]
) -> None:
    llm = EngineConfig(tensor_parallel=2, dtype="bf16", device="npu:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5")
        patch.setenv("HCCL_IF_IP", "10.0.0.1")
        made = model(llm, plugin, quantization="ascend", additional_config={"weight_nz_mode": 1})
        with closing(open_server(made, lambda: None)) as opened:
            assert opened.unready == ""
            assert (opened.card.max_model_len, opened.card.num_ranks) == (77, 2)
    program, *arguments = seen(packages)["argv"]
    modules = ("vllm/entrypoints/cli/main.py", "vllm/entrypoints/openai/api_server.py")
    assert program.endswith(modules[PLUGINS.index(plugin)])
    assert arguments[:2] == [*words, str(packages.parent / "qwen")]
    given = " ".join(arguments)
    assert "--dtype bfloat16 --max-num-seqs 64 --tensor-parallel-size 2" in given
    assert '--quantization ascend --additional-config {"weight_nz_mode": 1}' in given
    variables = seen(packages)["variables"]
    assert variables["ASCEND_RT_VISIBLE_DEVICES"] == "5"
    assert (variables["HCCL_IF_IP"], variables["VLLM_NO_USAGE_STATS"]) == ("10.0.0.1", "1")


def test_a_start_is_reported_until_the_server_answers(
    packages: Path, model: Callable[..., LocalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindspore_serving.llm.upstream.vllm_server.REPORT_SECONDS", 0.0)
    go = packages.parent / "go"
    (packages.parent / "script").write_text(f"{LOADS}wait {go}\n")
    reports = []

    def note(share: float, doing: str) -> None:
        reports.append((share, doing))
        if "loading weights" in doing:
            go.touch()

    with closing(VllmServer(model())) as process, loading.reported_to(note):
        process.wait_until_ready()
    assert reports[-1][0] == 0.15
    assert reports[-1][1].startswith("vllm-ascend is loading weights, ")
    assert "no output for " in reports[-1][1]


def test_a_server_that_ends_says_which_rank_failed_first(
    packages: Path, model: Callable[..., LocalModel], capfd: pytest.CaptureFixture[str]
) -> None:
    (packages.parent / "script").write_text(LOADS + FAILS)
    expected = (
        r"engine vllm \(vllm-ascend\) ended after \d+ s \(exit status 1\): Worker_TP1 failed "
        r"first: RuntimeError: EL0005: The resources are busy.; the device is in use: "
    )
    with pytest.raises(StartError, match=expected):
        open_server(model(), lambda: None)
    shown = capfd.readouterr().err.partition("last lines of Worker_TP1, which failed first:")[2]
    assert "  INFO [model_runner.py:1] Starting to load model" in shown
    assert "WorkerProc" not in shown


@pytest.mark.e2e
def test_an_interpreter_without_a_plugin_is_refused_on_ascend(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(stopped / "cache"))
    checkpoint(stopped / "qwen")
    python = environment_with(stopped / "environment", "vllm")
    options = {"engine": "vllm", "device": "npu"}
    with pytest.raises(ServingError, match="has no vllm-ascend or vllm-mindspore"):
        server.start_servables(config(stopped, "qwen", python=python, llm_options=options))


@pytest.mark.parametrize("words", SERVE, ids=" ".join)
def test_the_page_shows_options_that_exist(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen").mkdir()
    assert cli.main(["config", *words]) == 0


def test_the_page_lists_the_variables_that_are_passed() -> None:
    rows = {row.name: row for row in VARIABLES}
    for name, meaning, readers in table("variables"):
        row = rows.pop(name.strip("`"))
        accepts = f": {', '.join(row.accepts)}" if row.accepts else ""
        assert meaning == row.meaning + accepts
        assert readers == ("both" if len(row.plugins) == 2 else row.plugins[0])
    assert not rows


def test_the_page_lists_errors_that_are_recognised() -> None:
    for lines, advice in table("causes"):
        for line in re.findall("`(.+?)`", lines):
            output = EngineOutput()
            output.feed(f"RuntimeError: {line}".encode())
            output.feed(b"")
            hints = re.findall("`(.+?)`", advice)
            assert ";" in output.reason(), line
            assert all(hint.partition(" (")[0] in output.reason() for hint in hints), line


def table(name: str) -> list[list[str]]:
    """The rows of the table of the page behind the mark `name`."""
    text = (ROOT / PAGE).read_text().partition(f"<!-- {name} -->")[2].partition("<!-- end")[0]
    return [line.strip("| ").split(" | ") for line in text.strip().splitlines()[2:]]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the first `serve` of the page, with the stand-in of vllm-ascend."""
    place = tmp_path_factory.mktemp("served")
    checkpoint(place / "qwen")
    (place / "script").write_text(LOADS)
    python = environment_with(place / "environment", "vllm", "vllm-ascend")
    words = in_place(SERVE[0], {"/opt/vllm-ascend/bin/python": python})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(place / "cache"))
        patch.setenv(SCRIPT, str(place / "script"))
        patch.setenv(SEEN, str(place / "seen"))
        with serve(words[: words.index("--http-port")], place) as number:
            yield number


def text_of(port: int, prompt: str) -> str:
    answer = ask(port, "v1/completions", {"model": "qwen", "prompt": prompt, "max_tokens": 4})
    return str(answer["choices"][0]["text"])


@pytest.mark.e2e
def test_requests_are_answered_with_the_sampling_that_the_model_recommends(port: int) -> None:
    assert text_of(port, "The sea is").startswith("0.25 of ")


@pytest.mark.e2e
def test_a_request_whose_server_dies_is_answered_by_the_next(port: int) -> None:
    before = text_of(port, "The sea is")
    assert text_of(port, "die") not in ("", before)
