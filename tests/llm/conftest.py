"""Language models of tests may run in the toy runtime, by its name."""

from tests.llm import toy

__all__ = ["toy"]
