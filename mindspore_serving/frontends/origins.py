"""Web pages of other sites: they may not use a server through a browser that can reach it.

A browser sends what any page asks it to.  It says of which page (Origin, Sec-Fetch-Site), and under
which name it found the server (Host): a page that has its own name point at 127.0.0.1 is caught by
that.  Clients that are no browsers say none of it, or the server's own name.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from mindspore_serving.errors import Forbidden

ANY = "*"
SAFE = ("GET", "HEAD")  # change nothing, and a page of another site cannot read the answer
_OURS = (b"same-origin", b"none")  # none: a person typed the address
_MAX_KEPT = 1024
_HOST = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::[0-9]{0,5})?", re.ASCII
)


class OriginPolicy:
    """The rules of one server that listens on `host`.

    Names are checked only if `host` is of this machine alone, or `allowed_hosts` are given: they
    are accepted besides "localhost", IP addresses and `host` itself.  `allow_origins` are those of
    pages that may ask, like "https://example.org", or "*".
    """

    def __init__(
        self, host: str, allowed_hosts: Iterable[str] = (), allow_origins: Iterable[str] = ()
    ) -> None:
        names = {one.lower() for one in allowed_hosts}
        self._checks_names = bool(names) or is_loopback(host)
        self._names = names | {host.lower(), "localhost"}
        self.allow_origins = tuple(allow_origins)
        self._accepted: set[bytes | None] = {None}  # values of Host that were found good

    def is_plain(self, fields: Mapping[bytes, bytes]) -> bool:
        """Whether a request with these headers is no browser's, and calls the server as others did
        before: then `check` accepts it.
        """
        if b"origin" in fields or b"sec-fetch-site" in fields:
            return False
        return not self._checks_names or fields.get(b"host") in self._accepted

    def is_plain_json(self, fields: Mapping[bytes, bytes]) -> bool:
        """As `is_plain`, of a route that takes JSON: then `check_type` accepts it, too."""
        return self.is_plain(fields) and not _is_text(fields)

    def check(self, method: str, fields: Mapping[bytes, bytes]) -> None:
        """Raises Forbidden."""
        host = fields.get(b"host")
        if self._checks_names and host not in self._accepted:
            self._check_name(host or b"")
            if len(self._accepted) < _MAX_KEPT:
                self._accepted.add(host)
        origin, fetch_site = fields.get(b"origin"), fields.get(b"sec-fetch-site")
        if method in SAFE or fetch_site in _OURS or (origin is None and fetch_site is None):
            return
        given = (origin or b"null").decode("latin-1")
        if ANY in self.allow_origins or given in self.allow_origins:
            return
        if (
            fetch_site is not None
            or _authority_of(given) != (host or b"").decode("latin-1").lower()
        ):
            raise Forbidden(
                f"a web page of {given[:200]!r} asks, which is another site; --allow-origin, or "
                "allow_origins of start_restful_server, lets it"
            )

    def check_type(self, fields: Mapping[bytes, bytes]) -> None:
        """Of a route that takes JSON.  Raises Forbidden for what any page can send unasked, also by
        a browser that does not say from where.
        """
        if _is_text(fields):
            raise Forbidden("the content type is 'text/plain', expected 'application/json'")

    def _check_name(self, host: bytes) -> None:
        text = host.decode("latin-1")
        name = _name_of(text)
        if name not in self._names and not _is_address(name):
            raise Forbidden(
                f"the server is not known as {text[:200]!r}; --allowed-host, or allowed_hosts of "
                "start_restful_server, adds a name"
            )


def _is_text(fields: Mapping[bytes, bytes]) -> bool:
    return fields.get(b"content-type", b"").lstrip().lower().startswith(b"text/plain")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _name_of(host: str) -> str:
    """A Host header without its port, and an IPv6 address without brackets; "" for what is neither
    a name nor an address, with or without a port.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return ""
    address, name = found["address"], found["name"]
    if address is not None:
        return address if ":" in address else ""
    return str(name).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _authority_of(origin: str) -> str:
    """Host and port of an origin, as a Host header has them."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
