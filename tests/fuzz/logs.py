"""The logs of a server and its workers: tracebacks in them."""

from pathlib import Path

from tests.chaos.server import Server

IN_THE_LOG = "in the log: "  # begins what is found there
_TRACEBACK = "Traceback (most recent call last):\n"
_CHAINED = ("During handling of the above", "direct cause of the following")  # another one follows
_OF_A_SERVABLE = "servable_config.py"  # a servable's own function raised


class Logs:
    """`problems` looks at what was written since it was called last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._num_lines = 0
        self._sizes: dict[Path, int] = {}
        self.problems()

    def problems(self) -> list[str]:
        return [f"{IN_THE_LOG}{text}" for part in self._written() for text in tracebacks(part)]

    def _written(self) -> list[str]:
        lines = self._server.script.lines
        parts = ["".join(lines[self._num_lines :])]
        self._num_lines = len(lines)
        for path in sorted((self._server.directory / "serving_logs").rglob("*.log*")):
            with path.open("rb") as file:
                file.seek(self._sizes.get(path, 0))
                data = file.read()
            self._sizes[path] = self._sizes.get(path, 0) + len(data)
            parts.append(data.decode("utf-8", "replace"))
        return parts


def tracebacks(text: str) -> list[str]:
    """Each in `text`, its error first, but for those of servables' own functions."""
    if _TRACEBACK not in text:
        return []
    before, *parts = text.split(_TRACEBACK)
    found = []
    for part in parts:
        indent = len(before) - len(before.rstrip(" "))
        before = part
        if not any(words in part for words in (_OF_A_SERVABLE, *_CHAINED)):
            found.append(_shorten(part, indent))
    return found


def _shorten(text: str, indent: int) -> str:
    """The error at the end of a traceback, and its last calls; `text` goes on behind it."""
    calls: list[str] = []
    for line in text.splitlines():
        if line and len(line) - len(line.lstrip()) <= indent:
            return "\n".join([line.strip(), *calls[-8:]])
        calls.append(line[indent:])
    return "\n".join(calls[-8:])
