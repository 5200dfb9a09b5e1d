"""Texts that name upstreams, as `--upstream` takes them: URL[,NAME=VALUE]...  No I/O."""

from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from mindspore_serving.errors import StartError, did_you_mean

STATIC = ("http", "https")
DISCOVERED = ("dns", "dns+https", "kubernetes", "kubernetes+https", "file")
"""Schemes of URLs that stand for several upstreams, which can change; see `discovery`."""
MAX_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class UpstreamTarget:
    """Upstream at `url`, or the source of several.

    A target with weight 0, or one that `is_leaving`, gets no new requests. `address` replaces the
    host of the URL where it is connected to. `model` and `key_variable` replace the options of
    these names.
    """

    url: str
    weight: float = 1.0
    model: str = ""
    key_variable: str = ""
    address: str = ""
    is_leaving: bool = False

    @property
    def is_source(self) -> bool:
        """True if it stands for several upstreams."""
        return self.url.partition("://")[0] in DISCOVERED

    @property
    def origin(self) -> str:
        """Origin (scheme, host and port): the name of an upstream in logs, errors and metrics."""
        parts = urlsplit(self.url)
        if not self.address:
            return f"{parts.scheme}://{parts.netloc}"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


_SETTINGS = ("weight", "model", "key_variable")


def read_target(text: str) -> UpstreamTarget:
    """Read URL[,weight=N][,model=NAME][,key_variable=NAME].  Raises StartError."""
    url, *settings = text.split(",")
    target = UpstreamTarget(url)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in _SETTINGS or not (equals and value):
            near = did_you_mean(name, _SETTINGS)
            accepted = ", ".join(f"{each}=VALUE" for each in _SETTINGS)
            raise StartError(f"an upstream has {setting!r}, expected any of {accepted}{near}")
        changed = _weight(value) if name == "weight" else value
        target = replace(target, **{name: changed})  # type: ignore[arg-type]
    if url.startswith("file://"):
        if not url.startswith("file:///") or not url.isprintable():
            raise StartError(f"the upstream is {url!r}, expected file:///PATH, an absolute path")
    else:
        parts = split_url(url)
        if target.is_source and parts.port is None:
            raise StartError(f"the upstream is {url!r}, which has no port")
    return target


def split_url(url: str) -> SplitResult:
    """Split a URL; raise StartError unless it is SCHEME://HOST[:PORT][/PATH] and no more."""
    try:
        parts = urlsplit(url)
        has_host = parts.scheme in (*STATIC, *DISCOVERED) and bool(parts.hostname)
        is_plain = url.isascii() and url.isprintable() and " " not in url
        is_plain = is_plain and not (parts.query or parts.fragment or "@" in parts.netloc)
        if has_host and is_plain and parts.port != 0:
            return parts
    except ValueError:
        pass
    # Do not log a password before "@" or a key after "?".
    quoted = "a URL with @ or ?" if {"@", "?"} & set(url) else repr(url)
    raise StartError(f"the upstream's url is {quoted}, expected http://host:port/v1")


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= MAX_WEIGHT:
        raise StartError(f"the weight of an upstream is {text!r}, expected 0 to {MAX_WEIGHT:g}")
    return weight
