"""Tree of the paths of all routes, by which the protocol of a path is found.  Knows no handler."""

from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute

_ANY, _REST = "/", "//"  # keys of parameters: one segment, the rest of a path


class PathNode:
    """A node of the tree of paths: protocol, the routes of exactly this path, and children."""

    __slots__ = ("_children", "path", "protocol", "rows")

    def __init__(self, protocol: HttpProtocol, path: str = "") -> None:
        self.protocol = protocol
        self.path = path  # as declared
        self.rows: list[HttpRoute] = []
        self._children: dict[str, PathNode] = {}

    @property
    def is_open(self) -> bool:
        """True if no key is needed."""
        return bool(self.rows) and all(row.is_open for row in self.rows)

    @property
    def accepts_text_plain(self) -> bool:
        """True if forms of web pages of other sites are accepted (content type text/plain)."""
        return bool(self.rows) and all(row.accepts_text_plain for row in self.rows)

    @property
    def is_websocket(self) -> bool:
        """True if a client may go on with a WebSocket."""
        return any(row.is_websocket for row in self.rows)

    def add(self, row: HttpRoute) -> None:
        """Add a route at its path below this node, after those that were added before."""
        node = self
        for segment in _segments_of(row.path):
            child = PathNode(row.protocol, f"{node.path}/{segment}")
            node = node._children.setdefault(_key(segment), child)
            node.protocol = row.protocol
        node.rows.append(row)

    def find(self, path: str) -> "PathNode":
        """Return the node of `path`.

        For a path without routes it is a node without rows, with the protocol of the node that
        shares the longest prefix with it.
        """
        node = self
        for segment in _segments_of(path):
            children = node._children
            _, mark, verb = segment.rpartition(":")
            child = children.get(segment) or (children.get(f"/:{verb}") if mark else None)
            child = child or children.get(_ANY)
            if child is None:
                return children.get(_REST) or PathNode(node.protocol, node.path)
            node = child
        return node


def _segments_of(path: str) -> list[str]:
    return [] if path == "/" else path[1:].split("/")


def _key(segment: str) -> str:
    """Return the key of a segment: a literal itself; keys of parameters begin with a slash."""
    if not segment.startswith("{"):
        return segment
    if segment.endswith(":path}"):
        return _REST
    return f"/{segment.rpartition('}')[2]}"
