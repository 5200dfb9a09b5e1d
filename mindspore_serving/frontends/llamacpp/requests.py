"""Bodies of llama.cpp's requests."""

from typing import Any

import msgspec

from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.llamacpp.fields import INFILL, PROMPT


class ExtraFile(msgspec.Struct):
    """Another file, or a part of one, before the prompt."""

    text: str
    filename: str = "tmp"


class LlamaCppRequest(msgspec.Struct, kw_only=True):
    """Fields that both routes have."""

    model: str | None = None
    stream: bool | None = None
    stop: str | list[str] | None = None
    repeat_last_n: Int | None = None
    logit_bias: list[tuple[Int | str, float | bool]] | dict[str, float | bool] | None = None
    grammar: str | None = None
    json_schema: Any = None
    response_fields: list[str] | None = None
    return_tokens: bool | None = None


@PROMPT.extend
class PromptRequest(LlamaCppRequest, kw_only=True):
    """Body of /completion."""

    prompt: str | list[Int]


@INFILL.extend
class InfillRequest(LlamaCppRequest, kw_only=True):
    """Body of /infill; `prompt` is more of the prefix."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None
