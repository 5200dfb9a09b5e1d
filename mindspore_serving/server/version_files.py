"""The versions that are to be served, each with its files as they are now.  Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.servable.fingerprint import Fingerprint, fingerprint


@dataclass(frozen=True, slots=True)
class Found:
    """A version that is to be served, and its files."""

    deployment: Deployment
    files: Fingerprint


def look_at(deployments: Sequence[Deployment]) -> dict[str, list[Found]]:
    """`deployments` with their files, by name."""
    found: dict[str, list[Found]] = {}
    for one in deployments:
        files = fingerprint(one.servable_directory, one.servable_name, one.version_number)
        found.setdefault(one.name, []).append(Found(one, files))
    return found


def key_of(deployment: Deployment) -> tuple[str, int]:
    return deployment.name, deployment.version_number
