"""Findings that are not repaired yet."""

from tests.fuzz.campaign import Finding


def matches(finding: Finding) -> bool:
    return False
