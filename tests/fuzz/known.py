"""Findings that are not repaired yet.  Each has its file among the seeds, and a test shows that it
is still wrong; so what is repaired has to leave this table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuzz.campaign import Finding
from tests.fuzz.case import SEEDS, Case


@dataclass(frozen=True, slots=True)
class Known:
    """A finding.

    Attributes:
        path: of its file, below the seeds.
        reason: what is wrong.
        pattern: is in every problem that it makes, if the server survives it.
        skips: whether a case may make it, if the server does not.
    """

    path: str
    reason: str
    pattern: str = "never"
    skips: Callable[[Case], bool] | None = None


KNOWN: tuple[Known, ...] = ()


def is_skipped(case: Case) -> bool:
    """Whether a case is not sent."""
    return any(one.skips is not None and one.skips(case) for one in KNOWN)


def matches(finding: Finding) -> bool:
    """Whether a finding is one of them."""
    return any(re.search(one.pattern, finding.problem) for one in KNOWN)


def to_param(path: Path) -> object:
    """A file for a test that fails while it is known."""
    name = str(path.relative_to(SEEDS))
    marks = [pytest.mark.xfail(reason=one.reason, strict=True) for one in KNOWN if one.path == name]
    return pytest.param(name, id=name, marks=marks)


def harms(path: str) -> bool:
    """Whether the server does not survive what the file holds."""
    return any(one.skips is not None for one in KNOWN if one.path == path)
