"""Arrangement of messages for templates that are strict about the order of roles.

Coding agents send system messages behind others, and several messages of the user in a row.  Many
templates refuse both, or leave such a system message out.  Knows no Jinja.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs

PROBE = "6f1e-later"
_LATER = ({"role": "user", "content": "Hello"}, {"role": "system", "content": PROBE})
_REPEATED = ({"role": "user", "content": "Hello"}, {"role": "user", "content": PROBE})

Messages = list[dict[str, Any]]
Render = Callable[[Sequence[dict[str, Any]]], str]


class Arrangement:
    """Orders of roles that a template takes, found by rendering short chats with `render`."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._shown: dict[str, bool] = {}

    def arrange(self, messages: Messages) -> Messages:
        """Return the messages in an order of roles that the template renders.

        Where it does not render a system message behind others, that becomes the user's; where it
        does not render two messages of the user in a row, they become one.
        """
        if any(_is_system(message) for message in messages[1:]) and not self._shows(
            "later", _LATER
        ):
            first, *later = messages
            messages = [first, *map(_as_user, later)]
        pairs = zip(messages, messages[1:], strict=False)
        if any(_are_users(*pair) for pair in pairs) and not self._shows("repeated", _REPEATED):
            messages = _join_users(messages)
        return messages

    def _shows(self, name: str, probe: Sequence[dict[str, Any]]) -> bool:
        if name not in self._shown:
            try:
                self._shown[name] = PROBE in self._render(probe)
            except InvalidInputs:
                self._shown[name] = False
            if not self._shown[name]:
                log.warning("the chat template %s", _REPORTS[name])
        return self._shown[name]


_REPORTS = {
    "later": "renders no system message behind others: they are shown as the user's",
    "repeated": "takes no two messages of the user in a row: they are joined",
}


def _is_system(message: dict[str, Any]) -> bool:
    return message.get("role") == "system"


def _as_user(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "user"} if _is_system(message) else message


def _are_users(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return {first["role"], second["role"]} == {"user"}


def _join_users(messages: Messages) -> Messages:
    joined: Messages = []
    for message in messages:
        if joined and _are_users(joined[-1], message):
            last = joined[-1]
            joined[-1] = {**last, "content": _join(last["content"], message["content"])}
        else:
            joined.append(message)
    return joined


def _join(first: Any, second: Any) -> Any:
    """Return two contents, each a text or parts, as one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
