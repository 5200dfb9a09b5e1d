"""Which of the version directories of a servable are served side by side."""

from collections.abc import Sequence

from mindspore_serving.errors import InvalidInputs

LATEST, ALL = "latest", "all"
_MAX_DIGITS = 10


def choose(policy: str, found: Sequence[int]) -> list[int]:
    """The versions to serve of those `found`, ascending.

    Args:
        policy: "latest" (the newest), "latest:N" (the N newest), "all", or numbers, as "1,3".
        found: versions that there are, ascending.

    Raises InvalidInputs for another policy.
    """
    name, colon, number = policy.partition(":")
    if policy == ALL:
        return list(found)
    if name == LATEST and (not colon or _is_number(number)):
        return list(found[-int(number or 1) :])
    numbers = policy.split(",")
    if all(map(_is_number, numbers)):
        wanted = {int(text) for text in numbers}
        return [version for version in found if version in wanted]
    raise InvalidInputs(
        f"the version policy is {policy!r:.100}, expected 'latest', 'latest:N', 'all' or versions "
        "as '1,3'"
    )


def _is_number(text: str) -> bool:
    """Whether it is a number from 1 on, of no more digits than a version has."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0
