"""Bodies of TGI's requests, and the errors of bodies that cannot be read.

Null is accepted where the type has None.
"""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import TooLarge
from mindspore_serving.frontends import bodies
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.unknown_fields import KnownFields
from mindspore_serving.frontends.tgi.errors import UnreadableBody
from mindspore_serving.frontends.tgi.fields import FIELDS, schema_grammar

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class JsonGrammar(msgspec.Struct, tag_field="type", tag="json"):
    """Grammar of a JSON schema; `value` is the schema, or a string with it."""

    value: Any

    def to_grammar(self) -> Grammar:
        """Return the grammar.

        Raises InvalidField.
        """
        return schema_grammar(self.value)


class JsonObjectGrammar(JsonGrammar, tag="json_object"):
    """Another name for a JSON schema."""


class RegexGrammar(msgspec.Struct, tag_field="type", tag="regex"):
    """Grammar of a regular expression."""

    value: str

    def to_grammar(self) -> Grammar:
        return Grammar("regex", self.value)


class NamedSchema(msgspec.Struct):
    """JSON schema with a name."""

    schema: Any
    name: str | None = None


class SchemaGrammar(msgspec.Struct, tag_field="type", tag="json_schema"):
    """Grammar of a named JSON schema."""

    value: NamedSchema

    def to_grammar(self) -> Grammar:
        """Return the grammar.

        Raises InvalidField.
        """
        return schema_grammar(self.value.schema)


Grammars = JsonGrammar | JsonObjectGrammar | RegexGrammar | SchemaGrammar


@FIELDS.extend
class TgiParameters(msgspec.Struct, kw_only=True):
    """Parameters of a generation; `Fields.extend` adds other sampling parameters."""

    best_of: U64 | None = None
    top_k: I32 | None = None
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
    src_lang: str | None = None
    tgt_lang: str | None = None


def _default_parameters() -> TgiParameters:
    """Return the parameters of a request without any.

    The answer is sampled then; with `parameters` it is not by default.
    """
    return TgiParameters(do_sample=True)


class TgiGenerateRequest(msgspec.Struct, kw_only=True):
    """Body of /generate."""

    inputs: str
    parameters: TgiParameters = msgspec.field(default_factory=_default_parameters)


class CompatRequest(TgiGenerateRequest, kw_only=True):
    """Body of POST /."""

    stream: bool = False


class TgiChatRequest(msgspec.Struct, kw_only=True):
    """Body of /chat_tokenize; only the fields of the prompt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    response_format: Grammars | None = None
    model: str | None = None


GENERATE = msgspec.json.Decoder(TgiGenerateRequest)
COMPAT = msgspec.json.Decoder(CompatRequest)
CHAT = msgspec.json.Decoder(TgiChatRequest)

_PARAMETERS = KnownFields("TGI, parameters", TgiParameters)
_KNOWN = KnownFields("TGI", CompatRequest, inside={"parameters": _PARAMETERS})
find_unknown = _KNOWN.find_unknown
_OF_EMBEDDINGS = ("normalize", "prompt_name", "truncation_direction", "encoding_format")

T = TypeVar("T")


async def read_json(request: Request, state: AppState) -> bytes:
    """Return the body, whose type must be JSON.

    Raises WrongBody.
    """
    check_type(request)
    return await read_limited(request, state)


def check_type(request: Request) -> None:
    """Check that the body's type is JSON, or not set.

    Raises WrongBody.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    if main != "application" or (sub != "json" and not sub.endswith("+json")):
        raise UnreadableBody(415, "Expected request with `Content-Type: application/json`")


async def read_limited(request: Request, state: AppState) -> bytes:
    """Return the body.

    Raises WrongBody if it is too large.
    """
    try:
        return await bodies.read_json(request, state.max_body, state.models.limits)
    except TooLarge as error:
        text = "Failed to buffer the request body: length limit exceeded"
        raise UnreadableBody(413, f"{text}: {error}") from None


def refuse_embedding(unknown: Iterable[str]) -> None:
    """Refuse a request for embeddings, which have the same path.

    Raises WrongBody.
    """
    for name in unknown:
        if name in _OF_EMBEDDINGS:
            text = f"`{name}` is a field of embeddings, but the model generates text"
            advice = "serve an embedding model, or this one with --llm-option embeddings=true"
            raise UnreadableBody(422, f"{text}: {advice}")


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decode `body`.

    Raises WrongBody.
    """
    try:
        return bodies.decode(body, decoder)
    except bodies.InvalidBody as error:
        if not error.is_json:
            raise UnreadableBody(
                400, f"Failed to parse the request body as JSON: {error}"
            ) from None
        words = bodies.in_words(str(error))
        text = f"{error.field}: {words}" if error.field else words
        prefix = "Failed to deserialize the JSON body into the target type"
        raise UnreadableBody(422, f"{prefix}: {text}") from None
