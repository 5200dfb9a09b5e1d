"""The parameters of requests to language models: sampling parameters by their own names."""

from typing import Any

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import Fields, Refusal

_REFUSED = (
    Refusal("best_of", "is {}, expected 1 or none", lambda value: value != 1),
    Refusal("use_beam_search", "is not supported"),
    Refusal("lora_name", "is not supported: the model is called by the adapter's name"),
)
FIELDS = Fields("v2", _REFUSED)


@FIELDS.extend
class SamplingFields(msgspec.Struct, kw_only=True):
    """Sampling parameters are added from their table; unknown ones are ignored."""


def read(given: dict[str, Any]) -> SamplingFields:
    """Numbers and booleans may be texts.  Raises InvalidField."""
    try:
        return msgspec.convert(given, SamplingFields, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        name = place.strip("`").removeprefix("$.")
        raise InvalidField(name, text=f"parameter {name}: {text}") from None
