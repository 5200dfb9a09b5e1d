"""An answer for which the context has less room than a request asks for: it is shorter, and the
field that asked is named in a header, before the first byte.  Knows no protocol.
"""

from typing import Any

from mindspore_serving.core.llm_messages import Started
from mindspore_serving.frontends.chat.fields import Fields

HEADER = "x-capped-fields"


def capped_header(field: str, *started: Started) -> dict[str, str]:
    """The header that names `field`, by which the length was asked for, if one of `started` is
    capped; nothing if there is no such field."""
    return {HEADER: field} if field and any(one.is_capped for one in started) else {}


def field_of_length(fields: Fields, body: Any) -> str:
    """The protocol's name of `max_tokens`, as `body` gives it; "" if it does not."""
    name = fields.name_of("max_tokens", body)
    return name if getattr(body, name, None) is not None else ""
