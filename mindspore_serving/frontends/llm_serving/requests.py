"""The body that clients send, and the request to the model.  Numbers and booleans may be text, as
"False" and "55" are in the examples that people copied; unknown fields are ignored.
"""

from typing import Any

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Generate, RequestRefused
from mindspore_serving.errors import (
    InvalidField,
    InvalidInputs,
    NotFound,
    Overloaded,
    ServingError,
    TooLarge,
)
from mindspore_serving.frontends import bodies
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.llm_serving.answers import LlmServingError
from mindspore_serving.frontends.llm_serving.fields import FIELDS
from mindspore_serving.wire import status

Detail = dict[str, Any]

# Put around the prompt where a model is served under this name; they write their special tokens.
TEMPLATES = {
    "internlm_7b": "<s><s><|User|>:{}<eoh>\n<|Bot|>:",
    "baichuan2pa": "<reserved_106>{}<reserved_107>",
}


@FIELDS.extend
class LlmServingParameters(msgspec.Struct, kw_only=True):
    """Other sampling parameters are added from their table."""

    do_sample: bool | None = True
    top_k: int | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = True
    return_protocol: str | None = "sse"
    decoder_input_details: bool | None = False
    details: bool | None = False
    seed: int | None = 0
    top_n_tokens: int | None = 0
    truncate: bool | int | None = False
    watermark: bool | None = False


class ClientRequest(msgspec.Struct, kw_only=True):
    inputs: str
    parameters: LlmServingParameters | None = None
    stream: bool = False


class WrongRequest(InvalidInputs):
    """A body that is no request; `where` is the path to what is wrong."""

    def __init__(self, text: str, where: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.where = where

    def to_response(self) -> Response:
        detail = [{"loc": ["body", *self.where], "msg": str(self), "type": "value_error"}]
        return to_detail(422, detail)


def to_detail(status: int, detail: str | list[Detail], retry_after: str | None = None) -> Response:
    """An error with a status of HTTP's own."""
    return to_json(LlmServingError(detail), status, retry_after)


_decoder = msgspec.json.Decoder(ClientRequest, strict=False)


def decode(body: bytes) -> ClientRequest:
    """Raises WrongRequest."""
    try:
        return bodies.decode(body, _decoder)
    except bodies.InvalidBody as error:
        if not error.is_json:
            raise WrongRequest(f"the body is not JSON: {error}") from None
        where = tuple(error.field.split(".")) if error.field else ()
        raise WrongRequest(str(error), where) from None


def to_request(body: ClientRequest, model: ServedModel, *, is_stream: bool) -> Generate:
    """Raises InvalidField for what has no nearest value, such as too many stop texts."""
    given = body.parameters or LlmServingParameters()
    template = TEMPLATES.get(model.servable)
    return Generate(
        prompt=template.format(body.inputs) if template else body.inputs,
        params=FIELDS.params(given, model.card, {}),
        add_special=template is None,
        is_stream=is_stream,
        has_tokens=True,
        has_prompt_tokens=bool(given.decoder_input_details),
        adapter=model.adapter,
        **FIELDS.options(given, model.card),
    )


def to_response(error: Exception) -> Response:
    """The answer to a request that failed with `error` before anything was sent."""
    if isinstance(error, WrongRequest):
        return error.to_response()
    if not isinstance(error, ServingError):
        log.error("a request failed", exc_info=True)
        return to_detail(500, "the server failed; its log says why")
    if isinstance(error, RequestRefused) and error.refused.reason == "overloaded":
        error = Overloaded(str(error), error.refused.retry_after)
    if isinstance(error, InvalidField):
        return WrongRequest(str(error), ("parameters", error.field)).to_response()
    if isinstance(error, InvalidInputs) and not isinstance(error, NotFound | TooLarge):
        return WrongRequest(str(error)).to_response()
    return to_detail(status.of(error.code).http, str(error), status.retry_after(error))
