"""What the tests of the wire share: a method, golden bytes, and how much hypothesis tries."""

from pathlib import Path

import pytest
from hypothesis import settings

from mindspore_serving.core.graph import Method

settings.register_profile("wire", max_examples=200)
settings.load_profile("wire")

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def method():
    """A way to make a method with the given inputs."""

    def make(*inputs: str) -> Method:
        return Method("add_cast", inputs, ("y",), (), (0,))

    return make


@pytest.fixture
def golden():
    """A way to read golden bytes; a .hex file has comments after #."""

    def read(name: str) -> bytes:
        text = (GOLDEN / name).read_text()
        if name.endswith(".hex"):
            return bytes.fromhex(" ".join(line.partition("#")[0] for line in text.splitlines()))
        return text.strip().encode()

    return read
