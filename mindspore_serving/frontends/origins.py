"""Protection against web pages of other sites that use the server through a user's browser.

A browser sends requests for any page.  It adds the origin of the page (Origin, Sec-Fetch-Site) and
the name by which it reached the server (Host), which reveals DNS rebinding: a page whose own name
resolves to 127.0.0.1.  Other clients send none of these headers, or the name of the server.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from mindspore_serving.errors import Forbidden, WrongType

ANY = "*"
SAFE = ("GET", "HEAD")  # no side effects, and a page of another site cannot read the answer
_OURS = (b"same-origin", b"none")  # none: the user typed the address
_MAX_KEPT = 1024
_HOST = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::[0-9]{0,5})?", re.ASCII
)


class OriginPolicy:
    """Accepted host names and origins of a server that listens on `host`.

    Host names are checked only if `host` is a loopback address, or if there are `allowed_hosts`,
    which are accepted in addition to "localhost", IP addresses and `host`.  `allow_origins` has the
    origins of pages that can send requests, such as "https://example.org", or "*".
    """

    def __init__(
        self, host: str, allowed_hosts: Iterable[str] = (), allow_origins: Iterable[str] = ()
    ) -> None:
        names = {name.lower() for name in allowed_hosts}
        self._checks_names = bool(names) or is_loopback(host)
        self._names = names | {host.lower(), "localhost"}
        self.allow_origins = tuple(allow_origins)
        self._accepted: set[bytes | None] = {None}  # values of Host that passed the check

    def is_plain(self, fields: Mapping[bytes, bytes]) -> bool:
        """Return whether `check` accepts a request, by a quick look at its headers.

        It is not from a browser, and its Host was accepted before.
        """
        if b"origin" in fields or b"sec-fetch-site" in fields:
            return False
        return not self._checks_names or fields.get(b"host") in self._accepted

    def is_plain_json(self, fields: Mapping[bytes, bytes]) -> bool:
        """Return whether both `check` and `check_type` accept a request, by a quick look."""
        return self.is_plain(fields) and not _is_text(fields)

    def check(self, method: str, fields: Mapping[bytes, bytes]) -> None:
        """Check the Host of a request and its origin.  Raises Forbidden."""
        host = fields.get(b"host")
        if self._checks_names and host not in self._accepted:
            self._check_name(host or b"")
            if len(self._accepted) < _MAX_KEPT:
                self._accepted.add(host)
        origin, fetch_site = fields.get(b"origin"), fields.get(b"sec-fetch-site")
        if method in SAFE or fetch_site in _OURS or (origin is None and fetch_site is None):
            return
        page = (origin or b"null").decode("latin-1")
        if ANY in self.allow_origins or page in self.allow_origins:
            return
        name = (host or b"").decode("latin-1").lower()
        if fetch_site is not None or _authority_of(page) != name:
            raise Forbidden(
                f"web pages of {page[:200]!r}, which is another site, cannot send requests; "
                "--allow-origin, or allow_origins of start_restful_server, allows it"
            )

    def cors_fields(self, fields: Mapping[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """Return the fields by which a page of an allowed origin may read the answer."""
        origin, allowed = fields.get(b"origin"), self.allow_origins
        if origin is None or not (ANY in allowed or origin.decode("latin-1") in allowed):
            return ()
        return (
            (b"access-control-allow-origin", b"*" if ANY in allowed else origin),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"Origin"),
        )

    def check_type(self, fields: Mapping[bytes, bytes]) -> None:
        """Refuse the content type text/plain on a route for JSON.  Raises WrongType.

        Any page can send text/plain without a preflight request, even by browsers without Origin.
        """
        if _is_text(fields):
            raise WrongType(
                "the content type is 'text/plain', expected 'application/json': send the header "
                "Content-Type: application/json"
            )

    def _check_name(self, host: bytes) -> None:
        text = host.decode("latin-1")
        name = _name_of(text)
        if name not in self._names and not _is_address(name):
            raise Forbidden(
                f"the host name {text[:200]!r} is not accepted; --allowed-host, or "
                "allowed_hosts of start_restful_server, adds a name"
            )


def _is_text(fields: Mapping[bytes, bytes]) -> bool:
    return fields.get(b"content-type", b"").lstrip().lower().startswith(b"text/plain")


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address: only this machine can reach it."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _name_of(host: str) -> str:
    """Return the name or address in a Host header, without port; "" if it is invalid."""
    match = _HOST.fullmatch(host)
    if match is None:
        return ""
    address, name = match["address"], match["name"]
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
    """Return the host and port of an origin, as a Host header has them; "" if it is invalid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
