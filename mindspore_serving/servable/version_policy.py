"""Which of the version directories of a servable are served side by side."""

from collections.abc import Sequence

from mindspore_serving.errors import InvalidInputs

LATEST, ALL = "latest", "all"


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
    if name == LATEST and (not colon or (number.isascii() and number.isdigit() and int(number))):
        return list(found[-int(number or 1) :])
    numbers = policy.split(",")
    if all(text.isascii() and text.isdigit() and int(text) for text in numbers):
        wanted = {int(text) for text in numbers}
        return [version for version in found if version in wanted]
    raise InvalidInputs(
        f"the version policy is {policy!r}, expected 'latest', 'latest:N', 'all' or versions as "
        "'1,3'"
    )
