"""What `serve` says, and the options behind it, without starting anything."""

import json
import shlex
import subprocess
import sys

import pytest

import mindspore_serving
from mindspore_serving.cli import commands, main, report
from mindspore_serving.cli.options import SERVE, flag
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.params import rows_of
from tests.waiting import PATIENCE

METHOD = ("add it", [{"name": name, "dtype": None, "shape": None} for name in ("x'1", "x2")])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
def test_loopback_needs_no_warning(host: str) -> None:
    assert not list(report.warnings(ServeSettings(paths=["."], host=host)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "gpu-17"])
def test_other_addresses_are_warned_of_unless_there_is_tls(host: str) -> None:
    (text,) = report.warnings(ServeSettings(paths=["."], host=host))
    assert "without TLS" in text
    tls = ServeSettings(paths=["."], host=host, tls_cert="a.pem", tls_key="a.key")
    assert not list(report.warnings(tls))


def test_an_ipv6_address_is_put_in_brackets() -> None:
    assert report.address("::1", 1500) == "[::1]:1500"
    assert report.address("[::1]", 1500) == "[::1]:1500"
    assert report.address("127.0.0.1", 1500) == "127.0.0.1:1500"


def test_of_a_language_model_every_protocol_is_named_with_its_address() -> None:
    model = {"name": "m", "version": 1, "num_workers": 1, "methods": {}, "summary": "runtime toy"}
    lines = report.ready(ServeSettings(paths=["."], no_grpc=True), [model], 1.0).splitlines()
    assert "  REST  http://127.0.0.1:1500  (GET /docs, /health, /metrics, /servables)" in lines
    assert (
        "  OpenAI   http://127.0.0.1:1500/v1   Anthropic, Ollama, TGI  http://127.0.0.1:1500"
        in lines
    )
    assert "  chat     mindspore-serving chat http://127.0.0.1:1500" in lines


def test_the_call_is_quoted_for_the_shell_and_the_url() -> None:
    line = report.call_line(ServeSettings(paths=["."], host="0.0.0.0"), "add", *METHOD)
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:1500/model/add:add%20it"]
    assert words[2:] == ["-d", '{"instances": [{"x\'1": 1.0, "x2": 1.0}]}']


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        (None, None, 1.0),
        ("float32", [], 1.0),
        ("float16", [3], [1.0, 1.0, 1.0]),
        ("int64", [2, 1], [[1], [1]]),
        ("uint8", [None, 2], [[1, 1]]),
        ("bool", [1], [True]),
        ("str", [], "text"),
        ("bytes", None, {"b64": ""}),
    ],
)
def test_the_call_has_a_value_of_the_type_and_shape_that_is_wanted(dtype, shape, value) -> None:
    specs = [
        {"name": "x", "dtype": dtype, "shape": shape},
        {"name": "left out", "dtype": "str", "shape": [], "optional": True},
    ]
    words = shlex.split(report.call_line(ServeSettings(paths=["."]), "s", "m", specs))
    assert json.loads(words[-1]) == {"instances": [{"x": value}]}


def test_a_language_model_is_asked_with_a_text() -> None:
    specs = [{"name": "prompt", "dtype": None, "shape": None}]
    words = shlex.split(report.call_line(ServeSettings(paths=["."], no_http=True), "s", "m", specs))
    assert json.loads(words[-1]) == {"prompt": "Once upon a time"}


@pytest.mark.parametrize("no_http", [False, True])
def test_a_large_input_is_written_by_a_program(no_http: bool) -> None:
    specs = [
        {"name": "it's", "dtype": "float32", "shape": [3, None, 50]},
        {"name": "y", "dtype": "bool", "shape": [2]},
    ]
    line = report.call_line(ServeSettings(paths=["."], no_http=no_http), "s", "m", specs)
    program, _, call = line.partition(" | ")
    words = shlex.split(program)
    printed = subprocess.run([sys.executable, *words[1:]], capture_output=True, check=True).stdout
    instance = {"it's": [[[1.0] * 50]] * 3, "y": [True, True]}
    assert json.loads(printed) == (instance if no_http else {"instances": [instance]})
    assert shlex.split(call)[-1] == ("-" if no_http else "@-")
    assert len(line) < 250


def test_without_rest_the_call_is_by_predict() -> None:
    settings = ServeSettings(
        paths=["."], no_http=True, grpc_port=5501, tls_cert="a.pem", tls_ca="ca.pem"
    )
    words = shlex.split(report.call_line(settings, "add", *METHOD))
    assert words[:4] == ["mindspore-serving", "predict", "127.0.0.1:5501", "add"]
    assert words[6:] == shlex.split("--tls-ca a.pem --tls-cert CLIENT.pem --tls-key CLIENT-KEY.pem")


def test_the_version_is_that_of_the_package(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"mindspore-serving {mindspore_serving.__version__}\n"


@pytest.mark.parametrize("words", [["serve"], ["serve", ".", "--device-ids", "a"], ["fly"]])
def test_wrong_arguments_end_with_status_2(words: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "See 'mindspore-serving" in capsys.readouterr().err


def help_of(words: list[str], capsys: pytest.CaptureFixture[str], columns: int = 100) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as end:
            main(words)
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_of_serve_fits_two_screens_and_names_every_option(capsys) -> None:
    lines = help_of(["serve", "--help"], capsys).splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    rows = [row for row in rows_of(ServeSettings).values() if row.name_in(SERVE)]
    for row in rows:
        assert flag(row).removeprefix("--") in text
    assert {row.group for row in rows} <= {line.removesuffix(":") for line in lines}


def test_full_help_of_serve_has_details_of_every_option(capsys) -> None:
    text = " ".join(help_of(["serve", "--help-all"], capsys).split())
    for row in rows_of(ServeSettings).values():
        if row.name_in(SERVE):
            assert flag(row) in text
            assert row.meaning.replace("`", "") in text
            assert row.details.replace("`", "") in text


def test_help_is_as_narrow_as_the_terminal(capsys) -> None:
    lines = help_of(["worker", "--help"], capsys, columns=60).splitlines()
    of_options = lines[lines.index("options:") :]
    assert max(map(len, of_options)) <= 60


@pytest.mark.parametrize("command", commands.parsers(commands.parser()))
def test_help_texts_are_short_lines_that_say_unit_and_default_once(command: str) -> None:
    parser = commands.parsers(commands.parser())[command]
    for row in parser._rows.values():
        assert len(row.meaning) <= 90, row.name
        assert not row.meaning.endswith("."), row.name
        assert "(default" not in row.meaning + row.details, row.name
        assert "repeatable" not in row.meaning + row.details, row.name
        if row.is_common:
            assert len(row.meaning) <= 70, row.name


def test_the_help_of_serve_tells_the_layout_and_defaults(capsys) -> None:
    text = " ".join(help_of(["serve", "--help"], capsys).split())
    for words in ("servable_config.py", "NAME/1/", ".mindir", "127.0.0.1", "1500", "5500", "10000"):
        assert words in text


def test_the_command_line_loads_no_server_to_show_its_help() -> None:
    code = (
        "import sys\n"
        "from mindspore_serving.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('grpc', 'numpy', 'asyncio', 'httptools') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines()[-1] == "[]"
