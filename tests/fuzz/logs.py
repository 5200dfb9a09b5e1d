"""The logs of a server and its workers: tracebacks in them."""

from pathlib import Path

from tests.chaos.server import Server

_OF_A_SERVABLE = "servable_config.py"  # a servable's own function raised


class Logs:
    """`problems` looks at what was written since it was called last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._num_lines = 0
        self._sizes: dict[Path, int] = {}
        self.problems()

    def problems(self) -> list[str]:
        return [f"in the log: {text}" for part in self._written() for text in tracebacks(part)]

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
    if "Traceback" not in text:
        return []
    found = [_of_line(one) for one in text.split("Traceback (most recent call last):\n")[1:]]
    return [one for one in found if _OF_A_SERVABLE not in one]


def _of_line(text: str) -> str:
    """The error at the end of a traceback, then the traceback; `text` goes on behind it."""
    lines = text.splitlines()
    count = next((n for n, line in enumerate(lines) if line[:1] != " "), len(lines))
    return "\n".join(["".join(lines[count : count + 1]), *lines[:count][-12:]])
