"""What every test shares: what a marker names is there, or the test is skipped with the reason."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("all", deadline=None)  # how long an example takes says nothing here
settings.load_profile("all")

# Set by the MindIR backend for its own process; another runtime in this one must not read it.
ISA = "ONEDNN_MAX_CPU_ISA"
_isa_at_start = os.environ.get(ISA)
LIBRARY_OF_MARKER = {"mindspore": "mindspore", "torch": "torch", "onnx": "onnxruntime"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, library in LIBRARY_OF_MARKER.items():
        if item.get_closest_marker(marker) and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    if item.get_closest_marker("gpu") and not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA GPU")


def pytest_runtest_teardown() -> None:
    if _isa_at_start is None:
        os.environ.pop(ISA, None)
