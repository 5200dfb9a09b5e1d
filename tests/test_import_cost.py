"""Importing is cheap: a worker that reads a servable's configuration loads no server or runtime."""

import json
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"grpc", "torch", "mindspore", "onnxruntime", "ray", "starlette", "httptools"}


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after `statement`, beyond its own."""
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    return set(json.loads(done.stdout))


def test_importing_the_package_imports_no_third_party() -> None:
    loaded = modules_after("import mindspore_serving")
    assert loaded - sys.stdlib_module_names == {"mindspore_serving"}


def test_importing_register_loads_no_server_and_no_runtime() -> None:
    loaded = modules_after("from mindspore_serving.server import register")
    assert "mindspore_serving" in loaded
    assert loaded & HEAVY == set()
