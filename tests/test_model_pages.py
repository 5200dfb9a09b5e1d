"""The code of the pages that make models runs as shown."""

import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.pages import MODEL_PAGES, Step, Typist, blocks, file_name, follow

pytestmark = pytest.mark.e2e


@pytest.mark.slow
@pytest.mark.parametrize("page", MODEL_PAGES)
def test_the_examples_of_a_page_work_as_shown(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)


def test_the_backend_of_the_page_is_found_by_its_entry_point_and_serves(tmp_path: Path) -> None:
    with ExitStack() as servers:
        typist = Typist(tmp_path, servers)
        page = blocks("docs/backends.md")
        for block in page:
            if file_name(block):
                typist.write(block)
        (toml,) = [block.text for block in page if block.language == "toml"]
        install(tmp_path, re.sub(r'"', "", toml.partition("\n")[2]))
        (tmp_path / "linear" / "1").mkdir()
        np.savez(tmp_path / "linear" / "1" / "weight.npz", weight=np.array([[1.0, 2], [3, 4]]))
        path = f"PYTHONPATH={tmp_path}:$PYTHONPATH"
        port = "--http-port 1999 --no-grpc"
        typist.type(Step(f"env {path} mindspore-serving serve linear {port} &", ""))
        call = "mindspore-serving predict http://127.0.0.1:1999 linear predict"
        typist.type(
            Step(f"{call} '{{\"x\": [1.0, 10.0]}}'", '{"instances": [{"y": [31.0, 42.0]}]}')
        )


def install(directory: Path, entry_points: str) -> None:
    """What pip writes for a package with these entry points."""
    metadata = directory / "linear_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: linear\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[mindspore_serving.backends]\n{entry_points}")
