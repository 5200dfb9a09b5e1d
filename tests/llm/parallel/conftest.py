"""Tiny checkpoints that the tests of ranks share."""

from pathlib import Path

import pytest

from tests.llm import checkpoints


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def llama(built: Path) -> Path:
    return checkpoints.build("llama", built / "one")
