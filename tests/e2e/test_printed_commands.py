"""Every command that `serve` prints is pasted into a shell, and answered."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import printed
from tests.cli.commands import SERVING, Command
from tests.cli.conftest import write_words
from tests.e2e.authority import Authority
from tests.e2e.harness import ROOT
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TINY = str(ROOT / "examples" / "tiny_llm" / "model")
READY = "Ctrl-C stops"
KEY = "a-key's-own$words"
SERVABLE = """
import numpy as np
from mindspore_serving.server import register

def length(value):
    return len(value.tobytes() if isinstance(value, np.ndarray) else value)

def add(left, right):
    return left + right

TEXT = "it's \\"quoted\\" $HOME `x` \\\\n 你好"

@register.register_method(output_names=["n"], example={"it": TEXT})
def quoted(it):
    return register.add_stage(length, it, outputs_count=1)

@register.register_method(output_names=["n"])
def measured(image):
    return register.add_stage(length, image, outputs_count=1)

@register.register_method(output_names=["y"], example={"left": np.full((50, 2), 3), "right": True})
def wide(left, right):
    return register.add_stage(add, left, right, outputs_count=1)
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The key, as the server tells to set it."""
    return {**printed.installed(tmp_path), "MINDSPORE_SERVING_API_KEY": KEY}


def write_servable(directory: Path) -> None:
    (directory / "odd").mkdir()
    (directory / "odd" / "servable_config.py").write_text(SERVABLE)


def test_with_keys_and_tls_commands_have_the_header_and_the_certificate(tmp_path, variables):
    write_servable(tmp_path)
    (tmp_path / "with space").mkdir()
    certificate, private = Authority(tmp_path / "with space", "ca").issue("server")
    (tmp_path / "keys").touch(0o600)
    (tmp_path / "keys").write_text(KEY + "\n")
    words = ["--http-port", str(free_port()), "--no-grpc", "--api-key-file", "keys"]
    words += ["--tls-cert", os.path.relpath(certificate, tmp_path), "--tls-key", private]
    with Command([*SERVING, "serve", "odd", *words], tmp_path) as command:
        command.says(READY)
        assert KEY not in command.text
        assert "export MINDSPORE_SERVING_API_KEY=YOUR-KEY" in command.text
        lines = printed.commands(command.text)
        away = tmp_path / "bin"  # another directory than the server's
        answers = [json.loads(printed.paste(line, away, variables)) for line in lines]
        assert [answer["instances"][0] for answer in answers] == [
            {"n": 29},
            {"n": 97},
            {"y": [[4, 4]] * 50},
        ]
        (file,) = [line for line in command.lines if line.startswith("With a FILE of yours:")]
        (away / "it's a file").write_bytes(bytes(200_000))
        line = file.partition(":  ")[2].replace("FILE", '"it\'s a file"')
        assert json.loads(printed.paste(line, away, variables))["instances"] == [{"n": 200_000}]


def test_a_certificate_of_another_host_is_verified_by_its_name(tmp_path, variables):
    write_servable(tmp_path)
    hosts = ("*.example.org", "models.example.org")
    certificate, private = Authority(tmp_path, "ca").issue("server", hosts=hosts)
    words = ["--http-port", str(free_port()), "--no-grpc", "--host", "0.0.0.0"]
    words += ["--tls-cert", certificate, "--tls-key", private]
    with Command([*SERVING, "serve", "odd", *words], tmp_path) as command:
        command.says(READY)
        line = printed.commands(command.text)[0]
        assert "curl https://models.example.org:" in line
        assert json.loads(printed.paste(line, tmp_path))["instances"] == [{"n": 29}]


def test_without_rest_commands_are_of_our_client(tmp_path, variables):
    write_servable(tmp_path)
    words = ["--no-http", "--grpc-port", str(free_port()), "--api-key", KEY]
    with Command([*SERVING, "serve", "odd", *words], tmp_path) as command:
        command.says(READY)
        lines = printed.commands(command.text)
        assert all(line.count("mindspore-serving predict 127.0.0.1:") == 1 for line in lines)
        answers = [json.loads(printed.paste(line, tmp_path, variables)) for line in lines]
        assert [[*answer["instances"][0]] for answer in answers] == [["n"], ["n"], ["y"]]


def write_torch(directory: Path) -> None:
    torch = pytest.importorskip("torch", reason="it writes and runs the model")
    batch = torch.export.Dim("batch")
    net = torch.nn.Conv2d(3, 2, 5)
    program = torch.export.export(net, (torch.zeros(4, 3, 8, 8),), dynamic_shapes=[{0: batch}])
    torch.export.save(program, directory / "net.pt2")


def write_xgboost(directory: Path) -> None:
    xgboost = pytest.importorskip("xgboost", reason="it writes and runs the model")
    rows = np.arange(20.0).reshape(10, 2)
    xgboost.XGBRegressor(n_estimators=2).fit(rows, rows[:, 0]).save_model(directory / "net.ubj")


def write_lightgbm(directory: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="it writes and runs the model")
    rows = np.arange(200.0).reshape(100, 2)
    model = lightgbm.LGBMRegressor(n_estimators=2, verbosity=-1).fit(rows, rows[:, 0])
    model.booster_.save_model(directory / "net.txt")


def test_a_model_file_is_called_by_its_command(tmp_path):
    writers = {"convolution": write_torch, "boosted": write_xgboost, "leaves": write_lightgbm}
    for name, write in writers.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    words = ["serve", *writers, "--http-port", str(free_port()), "--no-grpc"]
    with Command([*SERVING, *words], tmp_path) as command:
        command.says(READY)
        lines = printed.commands(command.text)
        assert all(any(name in line for line in lines) for name in writers)
        printed.paste_all(lines, tmp_path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A language model of each use (chat, ids, images, vectors, ranks, labels), and tiny_llm's."""
    for library in ("openvino", "torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from tests.llm import chatty, seeing
    from tests.llm.encoders import describe_modules
    from tests.tasks import checkpoints

    place = tmp_path_factory.mktemp("uses")
    head = "ForSequenceClassification"
    chatty.build(place, "talks")
    chatty.build(place, "ids")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / "ids" / name).unlink()
    seeing.build(place, "smolvlm", "sees")
    checkpoints.build(place / "embeds", "bert", "Model")
    describe_modules(place / "embeds", {"pooling_mode_mean_tokens": True}, normalizes=True)
    checkpoints.build(place / "ranks", "xlm-roberta", head, labels=["fits"])
    checkpoints.build(place / "labels", "bert", head, labels=["bad", "good"])
    write_words(place, "plain")
    names = ("talks", "ids", "sees", "embeds", "ranks", "labels", "plain", TINY)
    words = ["--http-port", str(free_port()), "--no-grpc", "--llm-option", "kv_cache_memory=8e6"]
    with Command([*SERVING, "serve", *names, *words], place) as command:
        command.says(READY)
        yield command


def test_a_model_of_each_use_is_called_by_its_command(models, tmp_path, variables):
    lines = printed.commands(models.text)
    paths = [line.split()[1].partition("/v1/")[2] for line in lines if "/v1/" in line]
    assert sorted(paths) == [
        *["chat/completions"] * 3,
        "classify",
        "completions",
        "embeddings",
        "rerank",
    ]
    printed.paste_all(lines, tmp_path)


def test_a_chat_is_with_the_model_of_its_line(models, tmp_path, variables):
    lines = [line.strip() for line in models.lines if line.startswith("  chat  ")]
    assert [line.rpartition("--model ")[2] for line in lines] == ["model", "sees", "talks"]
    for line in lines:
        chat = line.removeprefix("chat").strip()
        assert printed.paste(f"{chat} --prompt Hello --max-tokens 4", tmp_path, variables)


def test_a_model_without_a_tokenizer_is_warned_of_at_the_start(models):
    assert "WARNING: ids has no tokenizer: prompts and answers are token ids" in models.text
    assert models.text.count("has no tokenizer") == 1
