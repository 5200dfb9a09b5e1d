"""`serve` with a wrong value for each kind of option: what it says, and that it starts nothing."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving.cli import main
from mindspore_serving.server import startup
from tests.cli.conftest import write_words
from tests.e2e.authority import Authority
from tests.ports import free_port

INT = "expected an int"
# Options, words of the error: an option that cannot be parsed, or whose value is refused.
USAGE = [
    (["--http-port", "abc"], "argument --http-port: 'abc': expected an int of 1 to 65535"),
    (["--http-port", "1.5"], "argument --http-port: '1.5': expected an int of 1 to 65535"),
    (["--poll", "soon"], "argument --poll: 'soon': expected a number >= 0"),
    (["--device-ids", "x"], "argument --device-ids: 'x': expected numbers as 0,1,2"),
    (["--log-level", "loud"], "'loud' (choose from"),
    (["--runtime", "foo"], "'foo' (choose from"),
    (["--backend", "foo"], "'foo' (choose from"),
]
WRONG = [
    (["--no-http", "--no-grpc"], "exclude each other: no port would be open"),
    (["--http-port", "70000"], "--http-port is 70000, expected an int of 1 to 65535"),
    (["--http-port", "0"], "--http-port is 0, expected an int of 1 to 65535"),
    (["--grpc-port", "-5"], "--grpc-port is -5, expected an int of 1 to 65535"),
    (["--port", "70000"], "--port is 70000, expected an int of 0 to 65535"),
    (["--max-msg-mb", "0"], "--max-msg-mb is 0, expected an int of 1 to 512"),
    (["--max-n", "129"], "--max-n is 129, expected an int of 1 to 128"),
    (["--front-ends", "65"], "--front-ends is 65, expected an int of 1 to 64"),
    (["--max-loaded", "-1"], "--max-loaded is -1, expected an int >= 0"),
    (["--max-enqueued-requests", "-1"], "--max-enqueued-requests is -1, expected an int >= 1"),
    (["--num-parallel-workers", "65"], "--num-parallel-workers is 65, expected an int of 0 to 64"),
    (["--shutdown-timeout", "0"], "--shutdown-timeout is 0.0, expected a number >= 1"),
    (["--shutdown-timeout", "nan"], "--shutdown-timeout is nan, expected a number >= 1"),
    (["--poll", "-1"], "--poll is -1.0, expected a number >= 0"),
    (["--trace-ratio", "7"], "--trace-ratio is 7.0, expected a number from 0 to 1"),
    (["--trace-endpoint", "nowhere"], "should be a URL as http://collector:4318"),
    (["--limit", "head_timeout"], "--limit is 'head_timeout', expected NAME=VALUE"),
    (["--limit", "head_timeout=0"], "head_timeout is 0, expected a number over 0"),
    (["--limit", "max_connections=abc"], "max_connections is 'abc', expected an int >= 1"),
    (["--limit", "speed=1"], "--limit speed does not exist; limits are max_connections, "),
    (["--limit", "max_conections=1"], "does not exist; did you mean 'max_connections'?\n"),
    (["--device-type", "TPU"], "Unsupported device type 'TPU', only support 'Ascend', 'GPU'"),
    (["--device-type", "cuda"], "case ignored; 'cuda' is 'GPU' here"),
    (["--device-type", "npu"], "case ignored; 'npu' is 'Ascend' here"),
    (["--device-ids", "-1"], "'device_ids' should be >= 0, but actually -1"),
    (["--device-ids", "0,0"], "'0' in parameter 'device_ids' should not be repeated"),
    (["--versions", "newest"], "the version policy is 'newest', expected 'latest', 'latest:N'"),
    (["--versions", "7"], "--versions 7 selects none of servable words, which has only 1"),
    (["--name", "a b"], "should be 1 to 128 letters, digits, '_', '-' or '.'"),
    (["--backend", "openvino"], "--backend is for model files without a servable_config.py"),
    (["--batch-axis", "x=1"], "--batch-axis is for model files without a servable_config.py"),
    (["--states", "a=b"], "--states is for model files without a servable_config.py"),
    (["--quantization", "int8"], "--quantization is for language models, but none is served"),
    (["--api-key", "secret1"], "--api-key is a text of 7 characters, expected at least 8"),
    (["--api-key", "with a space"], "--api-key is a text of 12 characters, expected at least 8"),
    (["--api-key", "k" * 8, "--api-key-file", "x"], "exclude each other"),
    (["--api-key-file", "empty"], "there is no API key in"),
    (["--tls-cert", "a.pem"], "--tls-cert and --tls-key need each other"),
    (["--tls-ca", "a.pem"], "--tls-ca needs both"),
    (["--allow-origin", "foo bar"], "'allow_origins' has 'foo bar', expected '*' or SCHEME://"),
    (["--allowed-host", "http://x.org"], "has 'http://x.org', expected a name without scheme"),
    (["--allow-lora-loading", "nothing"], "nothing', expected directories that exist"),
    (["--token-file", "nothing"], "--token-file is for --worker-address, which is not given"),
    (["--worker-address", "6200"], "address '6200' is illegal, expected 'ip:port'"),
    (["--worker-address", "127.0.0.1:6200"], "needs certificates (ssl_config, or --tls-cert"),
    (["--launcher", "ray"], "join by a token: call start_node_server with a token before"),
]
# Options, words of the error: what they name is missing, in use or broken.
BROKEN = [
    (["--config", "nothing"], "file nothing cannot be read: No such file or directory\n"),
    (["--config", "words"], "the configuration file words cannot be read: Is a directory\n"),
    (["--python", "nothing/python"], "python' does not exist"),
    (["--python", "/bin/ls"], "'/bin/ls' is not an interpreter of Python: expected one, as"),
    (["--environment", "nothing"], "is no directory with a file pylock.toml"),
    (["--api-key-file", "nothing"], "keys nothing cannot be read: No such file or directory\n"),
    (["--api-key-file", "words"], "keys words cannot be read: Is a directory\n"),
    (["--api-key-file", "readable"], "every user can read the API keys in readable: run chmod o="),
    (["--host", "no.invalid"], "failed: Name or service not known; expected an address of this"),
    (["--host", "203.0.113.1"], "Cannot assign requested address; expected an address of this"),
    (["--http-port", "{taken}"], "Address already in use; choose another port, or end the process"),
    (
        ["--tls-cert", "nothing", "--tls-key", "key"],
        "from nothing failed: No such file or directory",
    ),
    (
        ["--tls-cert", "empty", "--tls-key", "key"],
        "from empty failed: expected a certificate in PEM",
    ),
    (["--tls-cert", "cert", "--tls-key", "other"], "it is not the key of the certificate cert"),
    (
        ["--tls-cert", "cert", "--tls-key", "cert"],
        "from cert failed: expected a private key in PEM",
    ),
    (
        ["--tls-cert", "cert", "--tls-key", "key", "--tls-ca", "key"],
        "load root certificate from key failed: expected certificates in PEM",
    ),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The servable "words", a certificate with its key and another key, and an empty file."""
    path = write_words(tmp_path_factory.mktemp("wrong"))
    authority = Authority(path, "authority")
    certificate, key = authority.issue("server")
    for name, source in {
        "cert": certificate,
        "key": key,
        "other": authority.issue("two")[1],
    }.items():
        shutil.copy(source, path / name)
    for name, text in {"empty": "", "readable": "k" * 8}.items():
        (path / name).write_text(text)
        (path / name).chmod(0o604 if text else 0o600)
    return path


@pytest.fixture
def directory(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as working directory."""
    monkeypatch.chdir(files)
    return files


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The status of `serve` and its errors; it must not say that anything has started."""
    try:
        status = main(["serve", *words])
    except SystemExit as end:
        status = int(end.code or 0)
    assert not startup.is_running()
    printed, errors = capfd.readouterr()
    assert "success" not in printed
    assert "Ready" not in printed
    assert "Traceback" not in errors
    assert "[Errno" not in errors
    return status, errors


@pytest.mark.parametrize(("options", "words"), USAGE)
def test_an_option_that_cannot_be_parsed_is_named(directory, capfd, options, words):
    status, errors = refused(["words", *options], capfd)
    assert (status, words in errors) == (2, True), errors


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_an_option_with_a_wrong_value_is_named(directory, capfd, options, words):
    status, errors = refused(["words", *options], capfd)
    assert (status, words in errors) == (2, True), errors


@pytest.mark.parametrize(("options", "words"), BROKEN)
def test_a_file_or_address_that_cannot_be_used_is_named(directory, taken, capfd, options, words):
    options = [option.format(taken=taken) for option in options]
    if "--http-port" not in options:
        options += ["--http-port", str(free_port())]
    status, errors = refused(["words", *options, "--no-grpc"], capfd)
    assert (status, words in errors) == (1, True), errors


def test_the_environment_with_a_short_key_is_named(directory, monkeypatch, capfd):
    monkeypatch.setenv("MINDSPORE_SERVING_API_KEYS", "long-enough short")
    status, errors = refused(["words"], capfd)
    assert (status, "MINDSPORE_SERVING_API_KEYS is a text of 5 characters" in errors) == (2, True)
    assert "short" not in errors.replace("MINDSPORE_SERVING_API_KEYS", "")
