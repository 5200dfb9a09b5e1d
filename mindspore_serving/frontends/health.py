"""Whether the server lives, and what it is ready for: GET /livez, /health and /readyz, and the
service grpc.health.v1.  Everybody may ask, so nothing here shows more than names, versions and
reasons.
"""

from collections.abc import Sequence

from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.errors import ServableUnavailable

LOOK_AGAIN = 1.0  # seconds


def has_models(control: Control) -> bool:
    """Whether there are language models, or may be some soon."""
    return control.has_language_models or still_loading(control) is not None


def of_servable(control: Control, name: str) -> list[ServableReadiness]:
    """Each version of the servable `name`; none if there is no such servable."""
    return [one for one in control.readiness() if one.name == name]


def are_ready(control: Control, found: Sequence[ServableReadiness]) -> bool:
    """Whether all of `found` take requests; one that is loaded beside others does not count yet."""
    settled = [one for one in found if control.is_starting or one.loaded is None]
    return all(one.is_ready for one in settled or found)


def still_loading(control: Control, name: str = "") -> ServableUnavailable | None:
    """Why what is served now is not all that was to be served first, or why the servable `name` is
    not there yet; None if nothing more is expected.
    """
    found = [one for one in control.readiness() if control.is_starting or one.name == name]
    if control.is_starting and not found:
        return ServableUnavailable("no servable is started yet", LOOK_AGAIN)
    if all(one.loaded is None for one in found):
        return None
    shares = [1.0 if one.loaded is None else one.loaded for one in found]
    share = f"{sum(shares) / len(shares):.0%}".replace("%", " %")
    what = "the server" if control.is_starting else name
    return ServableUnavailable(f"{what} is still loading, {share}", LOOK_AGAIN)
