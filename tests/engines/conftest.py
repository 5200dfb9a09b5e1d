"""The fixtures of tests/e2e that are used here, too."""

from tests.e2e.conftest import stopped

__all__ = ["stopped"]
