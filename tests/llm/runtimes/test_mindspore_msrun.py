"""A server over ranks that MindSpore's msrun has started, on a CPU."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("mindspore")

from tests.cli.commands import environment
from tests.e2e.harness import ROOT, is_alive
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.mindspore, pytest.mark.slow, pytest.mark.long]
MODEL = ROOT / "examples" / "tiny_llm" / "model"
OPTIONS = ("tensor_parallel=2", "kv_cache_memory=4000000")


def request(port: int, path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, PATIENCE) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return json.load(error)


def processes_of(directory: Path) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _runs_in(entry, directory) and is_alive(int(entry.name))
    ]


def _runs_in(entry: Path, directory: Path) -> bool:
    try:
        return (entry / "cwd").resolve() == directory.resolve()
    except OSError:
        return False


def rank_of(process: int) -> str:
    variables = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return next((v.partition("=")[2] for v in variables if v.startswith("MS_NODE_ID=")), "")


def test_msrun_serves_over_its_ranks_which_end_with_the_first(tmp_path: Path) -> None:
    """Without --join, by which msrun kills all ranks itself."""
    port, meeting = free_port(), free_port()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={meeting}"]
    words += ["--log_dir=logs", "python", "-m", "mindspore_serving", "serve", str(MODEL)]
    words += ["--runtime", "mindspore", "--http-port", str(port), "--no-grpc"]
    words += [word for option in OPTIONS for word in ("--llm-option", option)]
    subprocess.run(words, cwd=tmp_path, env=environment() | {"PATH": path}, check=True)

    def is_ready() -> bool:
        assert processes_of(tmp_path), (tmp_path / "logs" / "worker_0.log").read_text()
        try:
            return bool(request(port, "/v1/models").get("data"))
        except OSError:
            return False

    try:
        eventually(is_ready)
        prompt = {"model": "model", "prompt": "Once upon a time", "temperature": 0}
        answer = request(port, "/v1/completions", {**prompt, "max_tokens": 8})
        assert answer["usage"]["completion_tokens"] == 8
        (lost,) = [process for process in processes_of(tmp_path) if rank_of(process) == "1"]
        os.kill(lost, signal.SIGKILL)
        answer = request(port, "/v1/completions", {**prompt, "max_tokens": 8})
        assert "servable is not available" in answer["error"]["message"]
        eventually(lambda: not processes_of(tmp_path))
    finally:
        for process in processes_of(tmp_path):
            os.kill(process, signal.SIGKILL)
