"""Three new users: each types what the README shows and pastes what the server prints.

The commands of the rest of README.md are typed by tests/test_readme.py, and those of every example
by tests/examples.
"""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.request import Request, urlopen

import pytest

from tests import printed
from tests.cli.commands import SERVING, Command, run
from tests.cli.conftest import write_onnx, write_words
from tests.e2e.harness import ROOT, eventually, workers
from tests.frontends.page.browser import CHROMIUM, Browser
from tests.frontends.page.chatting import ask, finished, settings
from tests.llm.real_model import real_model
from tests.ports import free_port
from tests.waiting import PATIENCE

READY = "Ctrl-C stops"
QUESTION, ANSWER = "Name the capital of France.", "The capital of France is Paris."
FIRST_LINES = 40  # a screen


def first_screen(page: str) -> str:
    return "\n".join((ROOT / page).read_text().splitlines()[:FIRST_LINES])


# --- the first screen of the READMEs ------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "language"), [("README.md", "docs/"), ("README_CN.md", "docs/zh/")]
)
def test_the_first_screen_has_a_picture_a_command_and_numbers(page: str, language: str) -> None:
    screen = first_screen(page)
    (picture,) = re.findall(r"!\[.+\]\((.+)\)", screen)
    assert picture == f"{language}page.png"
    assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
    assert "mindspore-serving serve model.gguf" in screen
    assert "](benchmarks/README.md)" in screen
    commands = re.findall(r"\| `((?:python -m|mindspore-serving) .+)` \|", screen)
    assert len(commands) == 3


def test_each_number_of_the_first_screen_is_in_the_benchmarks() -> None:
    recorded = (ROOT / "benchmarks" / "README.md").read_text()
    rows = re.findall(r"^\| .+? \| (.+?) \| `(.+?)` \|$", first_screen("README.md"), re.MULTILINE)
    assert len(rows) == 3
    chinese = first_screen("README_CN.md")
    for result, command in rows:
        numbers = re.findall(r"\d[\d,.]*\d", result)
        assert numbers
        for number in numbers:
            assert number in recorded, number
            assert number in chinese, number
        assert command.split("--")[0].strip().removesuffix(" FILE") in recorded


# --- a hobbyist with a GGUF file ----------------------------------------------------------------


@pytest.fixture(scope="module")
def hobbyist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The server of the README's first command."""
    place = tmp_path_factory.mktemp("hobbyist")
    (place / "model.gguf").symlink_to(real_model())
    (command,) = re.findall(
        r"^mindspore-serving (serve model\.gguf)", first_screen("README.md"), re.M
    )
    words = [*command.split(), "--http-port", str(free_port()), "--no-grpc"]
    with Command([*SERVING, *words, "--llm-option", "kv_cache_memory=64e6"], place) as server:
        server.says(READY)
        yield server


@pytest.mark.e2e
@pytest.mark.slow
def test_a_hobbyist_chats_by_the_printed_commands(hobbyist, tmp_path):
    for line in printed.commands(hobbyist.text):
        assert json.loads(printed.paste(line, tmp_path))
    (line,) = [line for line in hobbyist.lines if line.startswith("  chat ")]
    chat = line.removeprefix("  chat").strip()
    said = printed.paste(
        f"{chat} --temperature 0 --prompt '{QUESTION}'", tmp_path, printed.installed(tmp_path)
    )
    assert said.strip() == ANSWER


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_hobbyist_chats_on_the_printed_page(hobbyist, tmp_path):
    (line,) = [line for line in hobbyist.lines if line.startswith("  page ")]
    with Browser(tmp_path / "profile") as browser:
        browser.open(line.split()[-1])
        browser.until("document.body.dataset.chat === 'yes'")
        settings(browser, temperature="0")
        ask(browser, QUESTION)
        assert finished(browser).strip() == ANSWER
        assert browser.complaints == []


# --- a user of MindSpore, with a network and two old scripts ------------------------------------

SERVABLE_1_1 = """
import io
import numpy as np
from PIL import Image
from mindspore_serving.worker import register

def to_input(image):
    picture = Image.open(io.BytesIO(image.tobytes())).convert("RGB").resize((224, 224))
    return np.asarray(picture, np.float32).transpose(2, 0, 1) / 255

def to_label(scores):
    return f"class {int(scores.argmax())}"

register.declare_servable(servable_file="resnet50.mindir", model_format="MindIR")

@register.register_method(output_names=["label"])
def classify(image):
    image = register.call_preprocess(to_input, image)
    label = register.call_servable(image)
    label = register.call_postprocess(to_label, label)
    return label
"""

SERVER_1_1 = """
import os
from mindspore_serving import master, worker

def start():
    directory = os.path.abspath(".")
    worker.start_servable_in_master(directory, "resnet50", device_id=0)
    master.start_grpc_server("127.0.0.1", 5500)
    master.start_restful_server("127.0.0.1", 1500)

if __name__ == "__main__":
    start()
"""

CLIENT_1_1 = """
from mindspore_serving.client import Client

client = Client("127.0.0.1", 5500, "resnet50", "classify")
with open("image.png", "rb") as file:
    print(client.infer([{"image": file.read()}])[0]["label"])
"""


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of resnet50.mindir, exported by MindSpore."""
    pytest.importorskip("mindspore")
    place = tmp_path_factory.mktemp("network")
    for name in ("export_model.py", "net.py"):
        shutil.copy(ROOT / "examples" / "resnet50" / name, place)
    done = run([sys.executable, "export_model.py"], place)
    assert done.returncode == 0, done.stderr
    return place / "resnet50" / "1"


@pytest.mark.mindspore
@pytest.mark.e2e
@pytest.mark.slow
def test_a_network_of_mindspore_is_served_without_any_python(resnet50, tmp_path):
    words = ["serve", "resnet50.mindir", "--http-port", str(free_port()), "--no-grpc"]
    with Command([*SERVING, *words], resnet50) as server:
        server.says(READY)
        (line,) = printed.commands(server.text)
        (instance,) = json.loads(printed.paste(line, tmp_path))["instances"]
        (scores,) = instance.values()
        assert len(scores) == 1000


@pytest.mark.mindspore
@pytest.mark.e2e
@pytest.mark.slow
def test_old_scripts_serve_the_network_unchanged(resnet50, tmp_path):
    from PIL import Image

    shutil.copytree(resnet50, tmp_path / "resnet50" / "1")
    (tmp_path / "resnet50" / "servable_config.py").write_text(SERVABLE_1_1)
    Image.new("RGB", (32, 32), (255, 128, 0)).save(tmp_path / "image.png")
    ports = {"5500": str(free_port()), "1500": str(free_port())}
    for name, source in {"server.py": SERVER_1_1, "client.py": CLIENT_1_1}.items():
        for old, new in ports.items():
            source = source.replace(old, new)
        (tmp_path / name).write_text(source)
    with Command([sys.executable, "server.py"], tmp_path) as server:
        eventually(lambda: is_ready(f"http://127.0.0.1:{ports['1500']}"), what=server.text)
        done = run([sys.executable, "client.py"], tmp_path)
        assert re.fullmatch(r"class \d+\n", done.stdout), done.stderr
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=PATIENCE) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# --- a platform engineer with several models ----------------------------------------------------


@pytest.mark.e2e
@pytest.mark.onnx
def test_a_killed_worker_costs_a_platform_engineer_no_request(tmp_path):
    write_words(tmp_path / "models")
    write_onnx(tmp_path / "models" / "subtract" / "1" / "model.onnx")
    port = str(free_port())
    with Command(
        [*SERVING, "serve", "models", "--http-port", port, "--no-grpc"], tmp_path
    ) as server:
        server.says(READY)
        lines = printed.commands(server.text)
        assert [re.search(r"/model/(\w+):", line)[1] for line in lines] == [
            "subtract",
            *["words"] * 2,
        ]
        printed.paste_all(lines, tmp_path)
        url, is_over, statuses = f"http://127.0.0.1:{port}", Event(), []

        def call() -> None:
            body = b'{"instances": [{"x": 1}]}'
            while not is_over.is_set():
                request = Request(f"{url}/model/words:double", body)
                with urlopen(request, timeout=PATIENCE) as answer:  # raises for errors
                    statuses.append(answer.status)

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call) for _ in range(4)]
            try:
                for pid in workers(server.pid):
                    eventually(lambda: any(call.done() for call in calls) or len(statuses) > 50)
                    os.kill(pid, signal.SIGKILL)
                    statuses.clear()
                eventually(lambda: any(call.done() for call in calls) or len(statuses) > 200)
            finally:
                is_over.set()
        for finished_call in calls:
            finished_call.result()
        eventually(lambda: restarts(url) == {"words": 1.0, "subtract": 1.0})


def restarts(url: str) -> dict[str, float]:
    """Replaced workers by servable, as /metrics counts them."""
    with urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    row = re.compile(r'serving_worker_restarts_total\{servable="(\w+)",version="1"\} (\S+)')
    return {name: float(count) for name, count in row.findall(text)}
