"""The bodies that clients send, and what is said of one that is none.  Unknown fields are ignored;
null is taken where None is.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request

from mindspore_serving.errors import TooLarge
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.tgi.errors import WrongBody

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class JsonGrammar(msgspec.Struct, tag_field="type", tag="json"):
    """`value` is a schema, or its text."""

    value: Any


class JsonObjectGrammar(JsonGrammar, tag="json_object"):
    """Another name of the same."""


class RegexGrammar(msgspec.Struct, tag_field="type", tag="regex"):
    value: str


class NamedSchema(msgspec.Struct):
    schema: Any
    name: str | None = None


class SchemaGrammar(msgspec.Struct, tag_field="type", tag="json_schema"):
    value: NamedSchema


Grammars = JsonGrammar | JsonObjectGrammar | RegexGrammar | SchemaGrammar


class Parameters(msgspec.Struct, kw_only=True):
    best_of: U64 | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: I32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: U32 | None = None
    return_full_text: bool | None = None
    stop: list[str] = []
    truncate: U64 | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: U64 | None = None
    top_n_tokens: U32 | None = None
    grammar: Grammars | None = None
    adapter_id: str | None = None

    @property
    def is_sampled(self) -> bool:
        given = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return self.do_sample or any(value is not None for value in given)


def _unsaid() -> Parameters:
    """Without any parameters the answer is sampled, with the default ones it is not."""
    return Parameters(do_sample=True)


class GenerateRequest(msgspec.Struct, kw_only=True):
    inputs: str
    parameters: Parameters = msgspec.field(default_factory=_unsaid)


class CompatRequest(GenerateRequest, kw_only=True):
    stream: bool = False


class ChatRequest(msgspec.Struct, kw_only=True):
    """As far as its prompt goes."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    response_format: Grammars | None = None
    model: str | None = None


GENERATE = msgspec.json.Decoder(GenerateRequest)
COMPAT = msgspec.json.Decoder(CompatRequest)
CHAT = msgspec.json.Decoder(ChatRequest)

Asked = TypeVar("Asked")


async def read_json(request: Request, most: int) -> bytes:
    """The body, which says that it is JSON.  Raises WrongBody."""
    check_type(request)
    return await read_limited(request, most)


def check_type(request: Request) -> None:
    """Raise WrongBody unless the body says that it is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    if main != "application" or (sub != "json" and not sub.endswith("+json")):
        raise WrongBody(415, "Expected request with `Content-Type: application/json`")


async def read_limited(request: Request, most: int) -> bytes:
    """The body.  Raises WrongBody if it is too long."""
    try:
        return await read_body(request, most)
    except TooLarge:
        text = "Failed to buffer the request body: length limit exceeded"
        raise WrongBody(413, text) from None


def decode(body: bytes, decoder: "msgspec.json.Decoder[Asked]") -> Asked:
    """`body` as what `decoder` makes.  Raises WrongBody."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        place = where.strip("`").removeprefix("$").removeprefix(".")
        text = f"{place}: {what}" if place else what
        prefix = "Failed to deserialize the JSON body into the target type"
        raise WrongBody(422, f"{prefix}: {text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongBody(400, f"Failed to parse the request body as JSON: {error}") from None
