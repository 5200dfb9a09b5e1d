"""Readiness of the server and of servables, for GET /health and /readyz and for grpc.health.v1.

These need no key, so they show only names, versions and reasons.
"""

from collections.abc import Sequence

from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.errors import ServableUnavailable

RETRY_SECONDS = 1.0


def has_models(control: Control) -> bool:
    """Return whether there are language models, or servables still load that can be some."""
    return control.has_language_models or still_loading(control) is not None


def versions_of(control: Control, name: str) -> list[ServableReadiness]:
    """Return the versions of the servable `name`; none if it does not exist."""
    return [version for version in control.readiness() if version.name == name]


def are_ready(control: Control, versions: Sequence[ServableReadiness]) -> bool:
    """Return whether all `versions` are ready.

    After the start of the server, versions that still load do not count if others are loaded.
    """
    settled = [version for version in versions if control.is_starting or version.loaded is None]
    return all(version.is_ready for version in settled or versions)


def still_loading(control: Control, name: str = "") -> ServableUnavailable | None:
    """Return why the server, or after its start the servable `name`, is still loading, if it is."""
    versions = [
        version for version in control.readiness() if control.is_starting or version.name == name
    ]
    if control.is_starting and not versions:
        return ServableUnavailable("no servable has started yet", RETRY_SECONDS)
    if all(version.loaded is None for version in versions):
        return None
    shares = [1.0 if version.loaded is None else version.loaded for version in versions]
    share = f"{sum(shares) / len(shares):.0%}".replace("%", " %")
    what = "the server" if control.is_starting else name
    return ServableUnavailable(f"{what} is still loading, {share}", RETRY_SECONDS)
