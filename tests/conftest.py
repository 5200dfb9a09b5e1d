"""What every test shares: what a marker names is there, or the test is skipped with the reason."""

from importlib.util import find_spec
from pathlib import Path

import pytest

LIBRARY_OF_MARKER = {"mindspore": "mindspore", "torch": "torch", "onnx": "onnxruntime"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, library in LIBRARY_OF_MARKER.items():
        if item.get_closest_marker(marker) and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    if item.get_closest_marker("gpu") and not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA GPU")
