"""Version policy: the version directories of a servable that are served side by side."""

from collections.abc import Sequence

from mindspore_serving.errors import InvalidInputs

LATEST, ALL = "latest", "all"
_MAX_DIGITS = 10


def choose(policy: str, available: Sequence[int]) -> list[int]:
    """Return the versions to serve, ascending.

    Args:
        policy: "latest" (the newest), "latest:N" (the N newest), "all", or numbers, as "1,3".
        available: existing versions, ascending.

    Raises InvalidInputs for another policy.
    """
    name, colon, number = policy.partition(":")
    if policy == ALL:
        return list(available)
    if name == LATEST and (not colon or _is_number(number)):
        return list(available[-int(number or 1) :])
    numbers = policy.split(",")
    if all(map(_is_number, numbers)):
        selected = {int(text) for text in numbers}
        return [version for version in available if version in selected]
    raise InvalidInputs(
        f"the version policy is {policy!r:.100}, expected 'latest', 'latest:N', 'all' or versions "
        "as '1,3'"
    )


def _is_number(text: str) -> bool:
    """Return whether a text is a number from 1, with no more digits than a version has."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0
