"""Request bodies of llm-serving, and their translation to requests to a model.

Numbers and booleans can be texts, such as "False" and "55" in widespread examples; unknown fields
are ignored, unless they are misspelt or named as in another protocol.
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
from mindspore_serving.frontends.chat.unknown_fields import KnownFields
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.llm_serving.answers import LlmServingError
from mindspore_serving.frontends.llm_serving.fields import FIELDS
from mindspore_serving.wire import status

Detail = dict[str, Any]

# Templates of prompts by the name of the servable; they have special tokens.
TEMPLATES = {
    "internlm_7b": "<s><s><|User|>:{}<eoh>\n<|Bot|>:",
    "baichuan2pa": "<reserved_106>{}<reserved_107>",
}


@FIELDS.extend
class LlmServingParameters(msgspec.Struct, kw_only=True):
    """Parameters of a request; other sampling parameters are added from their table."""

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
    """Body of a request."""

    inputs: str
    parameters: LlmServingParameters | None = None
    stream: bool = False


class WrongRequest(InvalidInputs):
    """An invalid body; `path` has the keys to the wrong value."""

    def __init__(self, text: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.path = path

    def to_response(self) -> Response:
        """Return the answer, as FastAPI has it."""
        detail = [{"loc": ["body", *self.path], "msg": str(self), "type": "value_error"}]
        return to_detail(422, detail)


def to_detail(status: int, detail: str | list[Detail], retry_after: str | None = None) -> Response:
    """Return the answer for an error."""
    return to_json(LlmServingError(detail), status, retry_after)


_decoder = msgspec.json.Decoder(ClientRequest, strict=False)
_PARAMETERS = KnownFields("llm-serving, parameters", LlmServingParameters, FIELDS.ignored)
_KNOWN = KnownFields("llm-serving", ClientRequest, inside={"parameters": _PARAMETERS})


def decode(body: bytes) -> ClientRequest:
    """Decode a body.  Raises WrongRequest."""
    try:
        _KNOWN.find_unknown(body)
        return bodies.decode(body, _decoder)
    except bodies.InvalidBody as error:
        if not error.is_json:
            raise WrongRequest(f"the body is not JSON: {error}") from None
        raise WrongRequest(bodies.in_words(str(error)), _path_of(error)) from None
    except InvalidField as error:
        raise WrongRequest(str(error), _path_of(error)) from None


def _path_of(error: InvalidField) -> tuple[str, ...]:
    return tuple(error.field.split(".")) if error.field else ()


def to_request(body: ClientRequest, model: ServedModel, *, is_stream: bool) -> Generate:
    """Make the request to a model.

    Raises InvalidField for values without a nearest valid one, such as too many stop texts.
    """
    parameters = body.parameters or LlmServingParameters()
    template = TEMPLATES.get(model.servable)
    return Generate(
        prompt=template.format(body.inputs) if template else body.inputs,
        params=FIELDS.params(parameters, model.card, {}),
        add_special=template is None,
        is_stream=is_stream,
        has_tokens=True,
        has_prompt_tokens=bool(parameters.decoder_input_details),
        adapter=model.adapter,
        **FIELDS.options(parameters, model.card),
    )


def to_response(error: Exception) -> Response:
    """Return the answer to a request that failed with `error` before anything was sent."""
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
