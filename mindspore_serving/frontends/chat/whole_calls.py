"""Tool calls of an answer for protocols that send each call at once, with its arguments decoded."""

from typing import Any, NamedTuple

import msgspec

from mindspore_serving.core.llm_messages import ToolCallDelta


class WholeCall(NamedTuple):
    """A complete call; `arguments` is None if their text is no JSON object, as it was cut off."""

    name: str
    arguments: dict[str, Any] | None


class WholeCalls:
    """Assembles the calls of one answer from their parts."""

    def __init__(self) -> None:
        self._name = ""
        self._arguments: list[str] = []

    def take(self, delta: ToolCallDelta) -> list[WholeCall]:
        """Add a part; where a call begins, return the one before it."""
        if delta.name is None:
            self._arguments.append(delta.arguments)
            return []
        call = self.finish()
        self._name = delta.name
        return call

    def finish(self) -> list[WholeCall]:
        """Return the last call, if there is one."""
        name, text = self._name, "".join(self._arguments) or "{}"
        self._name, self._arguments = "", []
        if not name:
            return []
        try:
            return [WholeCall(name, msgspec.json.decode(text, type=dict[str, Any]))]
        except (msgspec.MsgspecError, RecursionError):
            return [WholeCall(name, None)]
