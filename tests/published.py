"""Model files of packages that are installed for their files alone (the Makefile's list)."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def file_of(package: str, path: str) -> Path:
    """Return a file of an installed package, without importing it; skip the test without one."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package with {package}/{path} is not installed (make test installs it)")
    file = Path(spec.origin).parent / path
    assert file.exists(), f"another version of {package} is installed than constraints.txt has"
    return file
