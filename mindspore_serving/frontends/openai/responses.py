"""POST /v1/responses: a conversation as items in, an answer as items out.  Nothing is stored.

A body is read as the chat that it means, so that both say the same to the model.
"""

import re
from contextlib import ExitStack

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.frontends.disconnect import Owned, while_there
from mindspore_serving.frontends.language import LanguageModel, RefusedError
from mindspore_serving.frontends.openai import chat
from mindspore_serving.frontends.openai.decoding import show
from mindspore_serving.frontends.openai.endpoint import post, timeout_of
from mindspore_serving.frontends.openai.envelope import find_generator
from mindspore_serving.frontends.openai.errors import Failure, WrongField, to_wrong_field
from mindspore_serving.frontends.openai.reading import Reading
from mindspore_serving.frontends.openai.requests import (
    AllowedTool,
    AllowedTools,
    ChatRequest,
    Function,
    JsonSchema,
    NamedFunction,
    ResponseFormat,
)
from mindspore_serving.frontends.openai.requests import Tool as ChatTool
from mindspore_serving.frontends.openai.requests import ToolChoice as ChatToolChoice
from mindspore_serving.frontends.openai.response_input import Messages, read, to_messages
from mindspore_serving.frontends.openai.response_requests import (
    LOGPROBS,
    Format,
    ResponseRequest,
    Tool,
    ToolChoice,
    refuse_unsupported,
)
from mindspore_serving.frontends.openai.response_writing import (
    Writing,
    stream_response,
    write_whole,
)
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream

STORED = "/v1/responses/{name:path}"
PLACE = re.compile(r"^messages(?:\[(\d+)\])?")
# What chats call a field, what it is called here.
NAMES = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    (".function.", "."),
    (".allowed_tools.", "."),
)


def routes(site: Site) -> list[BaseRoute]:
    return [
        post(site, "/v1/responses", ResponseRequest, answer),
        Route(STORED, not_stored, methods=["GET", "DELETE", "POST"]),
    ]


async def not_stored(request: Request) -> Response:
    """The answer to whoever asks for an earlier response."""
    name = request.path_params["name"].partition("/")[0]
    text = f"The response '{name}' does not exist: responses are not stored"
    return Failure(404, text, "invalid_request_error").to_response()


async def answer(site: Site, request: Request, asked: ResponseRequest) -> Response:
    """The answer to a conversation: one object, or a stream of events."""
    model = find_generator(site.models, asked.model)
    ask, reading = to_ask(asked, model)
    writing = Writing(_filled(asked, model), model.name, reading)
    with ExitStack() as stack:
        stream = stack.enter_context(model.generate(ask, timeout_of(request)))
        try:
            await while_there(request, stream.begin())
        except RefusedError as error:
            raise to_wrong_field(error, "input", "text.format") from None
        if asked.stream:
            return EventStream(Owned(stream_response(stream, writing), stack.pop_all()))
        whole = await while_there(request, write_whole(stream, writing))
    return Response(msgspec.json.encode(whole), media_type="application/json")


def _filled(asked: ResponseRequest, model: LanguageModel) -> ResponseRequest:
    """With the sampling that it did not ask for, as the answer repeats it."""
    sampling = dict(model.card.sampling)
    given = {name: getattr(asked, name) for name in ("temperature", "top_p")}
    missing = {name: sampling.get(name, 1.0) for name, value in given.items() if value is None}
    return msgspec.structs.replace(asked, **missing)


def to_ask(asked: ResponseRequest, model: LanguageModel) -> tuple[Generate, Reading]:
    """What to ask the model, and how to read its answer.  Raises InvalidInputs."""
    refuse_unsupported(asked)
    messages = to_messages(asked.input, asked.instructions)
    try:
        ask, reading = chat.to_ask(_to_chat(asked, messages), model)
    except WrongField as error:
        raise _renamed(error, messages) from None
    if reading.reasoning_format:  # whose tokens are counted as they come
        ask = msgspec.structs.replace(ask, is_stream=True)
    return ask, reading


def _to_chat(asked: ResponseRequest, messages: Messages) -> ChatRequest:
    has_logprobs = LOGPROBS in (asked.include or ()) or bool(asked.top_logprobs)
    return ChatRequest(
        messages=messages.found,
        stream=asked.stream,
        max_completion_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        logprobs=has_logprobs,
        top_logprobs=asked.top_logprobs,
        response_format=_to_format(asked.text.format) if asked.text and asked.text.format else None,
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        tools=[_to_tool(f"tools[{i}]", raw) for i, raw in enumerate(asked.tools or ())] or None,
        tool_choice=_to_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
    )


def _to_format(wanted: Format) -> ResponseFormat:
    if wanted.type != "json_schema":
        return ResponseFormat(wanted.type)
    if wanted.name is None or wanted.schema is None:
        name = f"text.format.{'name' if wanted.name is None else 'schema'}"
        raise WrongField(name, f"{name} is missing")
    return ResponseFormat(wanted.type, JsonSchema(wanted.name, schema=wanted.schema))


def _to_tool(place: str, raw: msgspec.Raw) -> ChatTool:
    tool = read(place, bytes(raw), Tool)
    if tool.type != "function":
        raise WrongField(
            f"{place}.type",
            f"{place}.type is {show(tool.type)}, expected function: there are no built-in tools",
        )
    if tool.name is None:
        raise WrongField(f"{place}.name", f"{place}.name is missing")
    return ChatTool("function", Function(tool.name, tool.description, tool.parameters))


def _to_choice(choice: str | ToolChoice | None) -> str | ChatToolChoice | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "function" and choice.name is not None:
        return ChatToolChoice("function", NamedFunction(choice.name))
    if choice.type == "allowed_tools":
        names = [tool.get("name") for tool in choice.tools or ()]
        allowed = [AllowedTool(function=NamedFunction(str(name))) for name in names if name]
        return ChatToolChoice("allowed_tools", None, AllowedTools(choice.mode or "auto", allowed))
    return ChatToolChoice(choice.type)


def _renamed(error: WrongField, messages: Messages) -> WrongField:
    """`error` about a field of a chat, with the name that the field has here."""
    old = error.param or ""
    new = PLACE.sub(lambda found: messages.places[int(found.group(1) or 0)], old)
    for chats, ours in NAMES:
        new = new.replace(chats, ours)
    return WrongField(new or None, str(error).replace(old, new), error.reason)
