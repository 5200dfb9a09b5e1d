"""Refusals of `mindspore-serving serve`: it ends before it listens, with the reason."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, call, run
from tests.cli.conftest import write_good_and_bad, write_words
from tests.ports import free_port

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("paths", [["scaler.pkl"], ["scaler.pkl", "net.jit"]])
def test_where_no_path_can_be_served_each_is_named_with_status_1(tmp_path: Path, paths) -> None:
    (tmp_path / "scaler.pkl").write_bytes(b"\x80\x04N.")
    (tmp_path / "net.jit").write_bytes(b"<p>")
    done = call(["serve", *paths, "--no-grpc"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert [one for one in paths if one not in done.stderr] == []


def test_a_missing_path_ends_serve_before_models_are_loaded(tmp_path: Path) -> None:
    write_words(tmp_path)
    done = call(["serve", "words", "wrods", "--no-grpc"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no file or directory" in done.stderr
    assert "did you mean 'words'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["serve", "words", "--htp-port", "1"], "--htp-port 1; did you mean '--http-port'?"),
        (["serve", "wrods"], "did you mean 'words'?"),
        (["serve", "words", "--limit", "head-timeut=1"], "did you mean 'head_timeout'?"),
    ],
)
def test_for_nearly_the_name_of_an_option_or_file_the_name_is_proposed(
    tmp_path, words, near
) -> None:
    write_words(tmp_path)
    done = call([*words, "--no-grpc"], tmp_path)
    assert done.returncode in (1, 2)
    assert near in done.stderr


def test_an_empty_directory_is_an_error_that_names_known_files(tmp_path: Path) -> None:
    (tmp_path / "empty" / "thing" / "1").mkdir(parents=True)
    done = call(["serve", "empty"], tmp_path)
    assert done.returncode == 1
    assert f"There is no servable in '{tmp_path}/empty'" in done.stderr
    assert "servable_config.py" in done.stderr
    assert "1/model.onnx" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_option_is_told_in_two_lines(tmp_path: Path) -> None:
    done = call(["serve", ".", "--http-port", "x"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "mindspore-serving serve: error: argument --http-port: 'x': expected an int of 1 to 65535",
        "See 'mindspore-serving serve --help'.",
    ]


def test_a_file_of_python_is_served_by_its_directory(tmp_path: Path) -> None:
    write_words(tmp_path)
    done = call(["serve", "words/servable_config.py"], tmp_path)
    assert done.returncode == 1
    assert f"serve the directory of a servable_config.py, '{tmp_path}/words'" in done.stderr
    (tmp_path / "model.py").touch()
    done = call(["serve", "model.py"], tmp_path)
    assert "is Python: serve the directory of a servable_config.py" in done.stderr


def test_a_servable_that_cannot_be_imported_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "servable_config.py").write_text("x = 1\nimport no_such_library\n")
    done = run([*SERVING, "serve", ".", "--http-port", str(free_port()), "--no-grpc"], tmp_path)
    assert done.returncode == 1
    assert "no_such_library" in done.stderr
    assert f"{tmp_path}/broken/servable_config.py, line 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_variable_of_the_log_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_words(tmp_path)
    monkeypatch.setenv("MINDSPORE_SERVING_LOG_LEVEL", "loud")
    done = run([*SERVING, "serve", "words"], tmp_path)
    expected = "MINDSPORE_SERVING_LOG_LEVEL should be one of debug, info, warning, error, but it is"
    assert (done.returncode, done.stderr) == (2, f"mindspore-serving: {expected} 'loud'\n")


def test_with_strict_everything_is_served_or_nothing(tmp_path: Path) -> None:
    write_good_and_bad(tmp_path / "models")
    options = ["--http-port", str(free_port()), "--no-grpc", "--strict"]
    done = run([*SERVING, "serve", "models", *options], tmp_path)
    assert done.returncode == 1
    assert "Not served, and --strict is given: scaler: 1/model.pkl is a pickle" in done.stderr
    done = run([*SERVING, "serve", "models/words", "models/typo", *options], tmp_path)
    assert done.returncode == 1
    assert "no_such_library" in done.stderr
    assert "Ready" not in done.stdout


def test_with_json_logs_all_complaints_are_json(tmp_path: Path) -> None:
    write_good_and_bad(tmp_path / "models")
    options = ["--log-format", "json", "--host", "0.0.0.0", "--limit", "head_timeout=0"]
    done = run([*SERVING, "serve", "models", *options], tmp_path)
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = [(line["level"], line["message"]) for line in lines]
    for level, words in (
        ("ERROR", "Not served: scaler: "),
        ("WARNING", "WARNING: listening on 0.0.0.0 without TLS"),
        ("ERROR", "mindspore-serving: head_timeout is 0, expected"),
    ):
        assert any(found == level and text.startswith(words) for found, text in told), told
