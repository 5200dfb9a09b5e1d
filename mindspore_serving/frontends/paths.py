"""Whose a path is, by the tree of the segments of all rows.  Knows no route's work."""

from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute

_ANY, _REST = "/", "//"  # keys of a parameter, which is a segment or the rest of a path


class PathNode:
    """A place in the tree of paths: whose it is, the `rows` of this path, and what is below."""

    __slots__ = ("_below", "path", "protocol", "rows")

    def __init__(self, protocol: HttpProtocol, path: str = "") -> None:
        self.protocol = protocol
        self.path = path  # as declared
        self.rows: list[HttpRoute] = []
        self._below: dict[str, PathNode] = {}

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return bool(self.rows) and all(row.is_open for row in self.rows)

    @property
    def takes_text(self) -> bool:
        """Whether a form of another site's web page may be sent here."""
        return bool(self.rows) and all(row.takes_text for row in self.rows)

    def add(self, row: HttpRoute) -> None:
        """Put `row`, which takes what rows before it leave, at its path below."""
        place = self
        for segment in _segments_of(row.path):
            below = PathNode(row.protocol, f"{place.path}/{segment}")
            place = place._below.setdefault(_key(segment), below)
            place.protocol = row.protocol
        place.rows.append(row)

    def find(self, path: str) -> "PathNode":
        """The place of `path`; of what no row has, one without rows, like that which shares the
        longest beginning with it.
        """
        place = self
        for segment in _segments_of(path):
            below = place._below
            _, mark, verb = segment.rpartition(":")
            found = below.get(segment) or (below.get(f"/:{verb}") if mark else None)
            found = found or below.get(_ANY)
            if found is None:
                return below.get(_REST) or PathNode(place.protocol, place.path)
            place = found
        return place


def _segments_of(path: str) -> list[str]:
    return [] if path == "/" else path[1:].split("/")


def _key(segment: str) -> str:
    """Of a literal itself; no segment has a slash, which other keys begin with."""
    if not segment.startswith("{"):
        return segment
    if segment.endswith(":path}"):
        return _REST
    return f"/{segment.rpartition('}')[2]}"
