"""What `serve` says, and the options behind it, without starting anything."""

import base64
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mindspore_serving
from mindspore_serving.cli import commands, main, report
from mindspore_serving.cli.client_commands import Reach, join_address
from mindspore_serving.cli.options import SERVE, flag
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.examples import Example
from mindspore_serving.core.params import rows_of
from mindspore_serving.core.signature import ValueSpec, describe_inputs
from tests.waiting import PATIENCE

METHOD = ("add it", describe_inputs([ValueSpec("x'1"), ValueSpec("x2")]))


def line_of(specs: list[ValueSpec], **settings: Any) -> str:
    reach = Reach.of(ServeSettings(paths=["."], **settings))
    return report.call_line(reach, "s", "m", describe_inputs(specs))


def ready(settings: ServeSettings, *servables: dict[str, Any], needs_key: bool = False) -> str:
    reach = Reach.of(settings, needs_key=needs_key)
    return report.ready(settings, reach, list(servables), 1.0)


def language_model(name: str = "m", **fields: Any) -> dict[str, Any]:
    """What a server says of a language model, which has no methods."""
    uses = ("can_embed", "can_score", "can_transcribe", "can_speak", "takes_images")
    card = dict.fromkeys(uses, False) | {
        "summary": "runtime toy", "can_generate": True, "has_chat_template": True,
        "has_tokenizer": True, "labels": [], "memory": "",
    }  # fmt: skip
    row = {"name": name, "version": 1, "num_workers": 1, "methods": {}, "sampling": ""}
    return {**row, "model": {**card, **fields}}


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
    assert join_address("::1", 1500) == "[::1]:1500"
    assert join_address("[::1]", 1500) == "[::1]:1500"
    assert join_address("127.0.0.1", 1500) == "127.0.0.1:1500"


@pytest.mark.parametrize(("host", "shown"), [("::", "[::1]"), ("0.0.0.0", "127.0.0.1")])
def test_a_host_that_cannot_be_connected_to_is_shown_as_this_machine(host, shown) -> None:
    words = shlex.split(line_of([ValueSpec("x")], host=host))
    assert words[1] == f"http://{shown}:1500/model/s:m"


def test_of_a_language_model_every_protocol_is_named_with_its_address() -> None:
    memory = "KV cache up to 1.9 GB (12 % of 16 GB memory)"
    model = language_model(memory=memory)
    lines = ready(ServeSettings(paths=["."], no_grpc=True), model).splitlines()
    assert "  REST  http://127.0.0.1:1500  (GET /docs, /health, /metrics, /servables)" in lines
    assert (
        "  OpenAI   http://127.0.0.1:1500/v1   Anthropic, Ollama, TGI  http://127.0.0.1:1500"
        in lines
    )
    assert "  chat     mindspore-serving chat http://127.0.0.1:1500" in lines
    assert "  KV cache up to 1.9 GB (12 % of 16 GB memory)" in lines


def test_of_several_language_models_each_has_a_chat_of_its_own() -> None:
    text = ready(ServeSettings(paths=["."]), language_model("a"), language_model("it's"))
    assert "mindspore-serving chat http://127.0.0.1:1500 --model a\n" in text
    assert "--model 'it'\"'\"'s'\n" in text


@pytest.mark.parametrize(
    ("card", "path", "field", "value"),
    [
        ({}, "/v1/chat/completions", "max_tokens", 64),
        ({"has_chat_template": False}, "/v1/completions", "prompt", "Once upon a time"),
        ({"has_tokenizer": False}, "/v1/completions", "prompt", [1, 2, 3]),
        ({"can_generate": False, "can_embed": True}, "/v1/embeddings", "model", "m"),
        ({"can_generate": False, "can_score": True, "labels": ["x"]}, "/v1/rerank", "model", "m"),
        ({"can_generate": False, "can_score": True, "labels": "ab"}, "/v1/classify", "model", "m"),
    ],
)
def test_a_language_model_is_asked_by_openais_routes(card, path, field, value) -> None:
    text = ready(ServeSettings(paths=["."]), language_model(**card))
    (line,) = [line for line in text.splitlines() if line.startswith("    curl ")]
    words = shlex.split(line)
    assert words[1] == f"http://127.0.0.1:1500{path}"
    assert json.loads(words[-1])[field] == value
    has_chat = path == "/v1/chat/completions"
    assert ("mindspore-serving chat" in text) == has_chat


@pytest.mark.parametrize(
    ("use", "command"),
    [
        (
            "can_transcribe",
            "curl http://127.0.0.1:1500/v1/audio/transcriptions -F model=m -F file=@speech.wav",
        ),
        (
            "can_speak",
            'curl http://127.0.0.1:1500/v1/audio/speech -d \'{"model": "m", "input": '
            '"Good morning.", "response_format": "wav"}\' -o speech.wav',
        ),
    ],
)
def test_a_model_of_sound_is_used_with_a_file_of_sound(use: str, command: str) -> None:
    text = ready(ServeSettings(paths=["."]), language_model(can_generate=False, **{use: True}))
    assert f"    {command}\n" in text


def test_a_model_of_images_is_asked_with_an_image() -> None:
    text = ready(ServeSettings(paths=["."]), language_model(takes_images=True))
    (line,) = [line for line in text.splitlines() if line.startswith("    curl ")]
    (message,) = json.loads(shlex.split(line)[-1])["messages"]
    (image,) = [part for part in message["content"] if part["type"] == "image_url"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")


def test_a_model_without_a_tokenizer_is_warned_of() -> None:
    (text,) = report.model_warnings([language_model(has_tokenizer=False), language_model()])
    assert text.startswith("WARNING: m has no tokenizer: prompts and answers are token ids")


def test_the_key_is_a_variable_in_commands_and_never_shown() -> None:
    settings = ServeSettings(paths=["."], api_key=("top secret",))
    text = ready(settings, language_model(), needs_key=True)
    assert "top secret" not in text
    assert "  key   export MINDSPORE_SERVING_API_KEY=YOUR-KEY  (first, in the shell" in text
    assert ' -H "Authorization: Bearer $MINDSPORE_SERVING_API_KEY" ' in text
    assert "Bearer" not in ready(settings, language_model())


def test_the_certificate_is_found_from_any_directory() -> None:
    line = line_of([ValueSpec("x")], tls_cert="my cert.pem", tls_key="key.pem")
    words = shlex.split(line)
    assert words[1].startswith("https://")
    assert words[words.index("--cacert") + 1] == os.path.abspath("my cert.pem")


def test_the_sampling_of_a_language_model_is_named_with_its_source() -> None:
    sampling = "sampling temperature 0.8 (defaults of the server: the model recommends none)"
    model = {**language_model(), "sampling": sampling}
    lines = ready(ServeSettings(paths=["."]), model)
    assert f"  runtime toy\n  {sampling}\n" in lines


def test_the_call_is_quoted_for_the_shell_and_the_url() -> None:
    reach = Reach.of(ServeSettings(paths=["."], host="0.0.0.0"))
    words = shlex.split(report.call_line(reach, "add", *METHOD))
    assert words[:2] == ["curl", "http://127.0.0.1:1500/model/add:add%20it"]
    assert words[2:] == ["-d", '{"instances": [{"x\'1": 1.0, "x2": 1.0}]}']


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        (None, None, 1.0),
        ("float32", (), 1.0),
        ("float16", (3,), [1.0, 1.0, 1.0]),
        ("int64", (2, 1), [[1], [1]]),
        ("uint8", (None, 2), [[1, 1]]),
        ("bool", (1,), [True]),
        ("str", (), "text"),
        ("bytes", None, {"b64": "dGV4dA=="}),
    ],
)
def test_the_call_has_a_value_of_the_type_and_shape_that_is_wanted(dtype, shape, value) -> None:
    specs = [ValueSpec("x", dtype, shape), ValueSpec("left out", "str", (), is_optional=True)]
    assert json.loads(shlex.split(line_of(specs))[-1]) == {"instances": [{"x": value}]}


@pytest.mark.parametrize("name", ["text", "input_text", "Question", "prompt"])
def test_a_function_gets_a_text_where_the_name_is_that_of_a_text(name: str) -> None:
    (value,) = json.loads(shlex.split(line_of([ValueSpec(name)]))[-1])["instances"][0].values()
    assert isinstance(value, str)


@pytest.mark.parametrize("name", ["image", "image_bytes", "img"])
def test_a_function_gets_an_image_where_the_name_says_so(name: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="it decodes the image")
    (value,) = json.loads(shlex.split(line_of([ValueSpec(name)]))[-1])["instances"][0].values()
    assert image.open(io.BytesIO(base64.b64decode(value["b64"]))).size == (32, 32)


def test_a_declared_example_is_shown_instead_of_a_likely_value() -> None:
    spec = ValueSpec("text", declared=Example([[1, 2], [3, 4]]))
    assert json.loads(shlex.split(line_of([spec]))[-1]) == {
        "instances": [{"text": [[1, 2], [3, 4]]}]
    }


def test_a_file_is_sent_by_a_command_that_is_shown_once(tmp_path: Path) -> None:
    specs = describe_inputs([ValueSpec("100% image")])
    methods = {name: {"inputs": [], "outputs": [], "input_specs": specs} for name in "ab"}
    row = {"name": "s", "version": 1, "num_workers": 1, "methods": methods}
    text = ready(ServeSettings(paths=["."]), row)
    assert text.count("With a FILE of yours:  printf ") == 1
    (line,) = [line for line in text.splitlines() if line.startswith("With a FILE of yours:")]
    command = line.partition(":  ")[2].partition(" | curl")[0].replace("FILE", "'a file'")
    content = bytes(range(256)) * 1000
    (tmp_path / "a file").write_bytes(content)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    (instance,) = json.loads(done.stdout)["instances"]
    assert base64.b64decode(instance["100% image"]["b64"]) == content


@pytest.mark.parametrize("no_http", [False, True])
def test_a_large_input_is_written_by_a_program(no_http: bool) -> None:
    specs = [ValueSpec("it's", "float32", (3, None, 50)), ValueSpec("y", "bool", (2,))]
    line = line_of(specs, no_http=no_http)
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
    words = shlex.split(report.call_line(Reach.of(settings), "add", *METHOD))
    assert words[:4] == ["mindspore-serving", "predict", "127.0.0.1:5501", "add"]
    files = ["--tls-cert", "CLIENT.pem", "--tls-key", "CLIENT-KEY.pem"]
    assert words[6:] == ["--tls-ca", os.path.abspath("a.pem"), *files]


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
