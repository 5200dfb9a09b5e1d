"""npm's @huggingface/inference, which calls the model by the URL of its endpoint."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.frontends.openai.serving import serving, spoken
from tests.waiting import PATIENCE

PROGRAM = Path(__file__).with_name("chat.mjs")


def test_an_endpoints_url_means_the_default_model(tmp_path: Path) -> None:
    place = os.environ.get("AGENT_CLIENTS", "")
    modules = Path(place) / "npm" / "node_modules"
    if not place or not modules.is_dir() or not shutil.which("node"):
        pytest.skip("scripts/agent-clients DIRECTORY makes what AGENT_CLIENTS names; it needs npm")
    (tmp_path / "node_modules").symlink_to(modules)
    program = shutil.copy(PROGRAM, tmp_path)
    with serving() as web:
        web.says(*spoken("Hel", "lo!"))
        url = web.url.removesuffix("/v1")
        done = subprocess.run(
            ["node", program, url], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ["Hello!", "Hello!"]
