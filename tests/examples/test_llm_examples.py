"""The start scripts of llm-serving: users' files start our server, and its clients are answered."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("yaml")
pytest.importorskip("openvino")

from mindspore_serving.client import MindsporeInferenceClient
from mindspore_serving.llm import LLM, SamplingParams
from tests.examples.conftest import ROOT, environment, started
from tests.ports import free_port
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL = ROOT / "examples" / "tiny_llm" / "model"
PROMPT = "Mr. Darcy said"
COUNT = 8


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the scripts and files, which find the model where they ever did."""
    shutil.copytree(ROOT / "examples" / "llm", tmp_path / "llm")
    (tmp_path / "tiny_llm").mkdir()
    os.symlink(MODEL, tmp_path / "tiny_llm" / "model")
    return tmp_path / "llm"


@pytest.fixture(scope="module")
def expected() -> Iterator[str]:
    with LLM(MODEL, max_model_len=512) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=COUNT)
        yield llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text


def with_port(path: Path, old: str) -> str:
    """Let the file name a free port in place of `old`."""
    port, text = str(free_port()), path.read_text()
    assert old in text
    path.write_text(text.replace(old, port))
    return port


@pytest.mark.parametrize(
    ("file", "old_port", "name"),
    [
        ("configs/tiny_llm.yaml", "9800", "tiny_llm"),
        ("config/serving_config.py", "9811", "llama_dyn"),
    ],
)
def test_a_users_file_starts_the_server(
    place: Path, expected: str, file: str, old_port: str, name: str
) -> None:
    port = with_port(place / file, old_port)
    command = [sys.executable, "start.py", "--config", file]
    with started(command, place, environment()):
        url = f"http://127.0.0.1:{port}"
        for model in (name, "llama2"):
            client = MindsporeInferenceClient(model, url, timeout=PATIENCE)
            assert client.generate(PROMPT, max_new_tokens=COUNT).generated_text == expected
        pieces = client.generate_stream(PROMPT, do_sample=False, max_new_tokens=COUNT)
        assert [*pieces][-1].generated_text == expected


def test_the_first_releases_names_need_no_arguments(place: Path, expected: str) -> None:
    port = with_port(place / "config" / "serving_config.py", "9811")
    with started([sys.executable, "server_app_post.py"], place, environment()):
        client = MindsporeInferenceClient("llama2", f"http://127.0.0.1:{port}", timeout=PATIENCE)
        assert client.generate(PROMPT, max_new_tokens=COUNT).generated_text == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_agent_says_that_there_is_nothing_to_do_and_stays(place: Path, number: int) -> None:
    command = [sys.executable, "start_agent.py", "--config", "configs/tiny_llm.yaml"]
    process = subprocess.Popen(
        command, cwd=place, env=environment(), text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == (
            "tiny_llm has one rank, which start.py runs; nothing listens on localhost:9820\n"
        )
        assert process.stdout.readline() == "all agents started\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("script", ["start.py", "start_agent.py"])
def test_a_file_that_cannot_be_used_ends_the_script_with_the_reason(
    place: Path, script: str
) -> None:
    done = subprocess.run(
        [sys.executable, script, "--config", "configs/internlm_kbk.yaml"],
        cwd=place,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "the model is '/path/to/internlm-chat-7b', but" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.mindspore
def test_mindir_files_are_served_as_the_checkpoint_is(place: Path, expected: str) -> None:
    exported = place / "exported"
    command = [sys.executable, "-m", "mindspore_serving.llm.export_mindir", str(MODEL)]
    subprocess.run([*command, str(exported)], env=environment(), check=True, timeout=240)
    file = place / "configs" / "llama2_7b_mindir.yaml"
    text = file.read_text().replace("/path/to/llama2_7b_mindir", str(exported))
    file.write_text(text.replace("4096", "512"))
    port = with_port(file, "9800")
    with started([sys.executable, "start.py", "--config", str(file)], place, environment()):
        client = MindsporeInferenceClient("llama_7b", f"http://127.0.0.1:{port}", timeout=PATIENCE)
        with LLM(MODEL, dtype="f32", kv_cache_dtype="f32", max_model_len=512) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=COUNT)
            exact = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text
        assert client.generate(PROMPT, max_new_tokens=COUNT).generated_text == exact
