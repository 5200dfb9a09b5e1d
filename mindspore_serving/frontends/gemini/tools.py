"""Functions of a request, and which of them the model may or must call."""

import re
from typing import Any, Literal

from mindspore_serving.core.llm_messages import ToolChoice
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.frontends.gemini.requests import FunctionDeclaration, GenerateContentRequest
from mindspore_serving.frontends.gemini.schemas import to_json_schema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_MODES: dict[str, Literal["none", "auto", "required"]] = {
    "MODE_UNSPECIFIED": "auto",
    "AUTO": "auto",
    "VALIDATED": "auto",  # a call keeps to its schema in every mode
    "ANY": "required",
    "NONE": "none",
}
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

Tools = dict[str, dict[str, Any]]


def read_tools(body: GenerateContentRequest) -> tuple[list[dict[str, Any]], ToolChoice]:
    """Return the functions that may be called, and the choice among them.

    Raises InvalidField.
    """
    known: Tools = {}
    for index, tool in enumerate(body.tools or ()):
        for number, declared in enumerate(tool.functionDeclarations or ()):
            path = f"tools[{index}].functionDeclarations[{number}]"
            if declared.name in known:
                raise InvalidField(f"{path}.name", f"is {show(declared.name)} for the second time")
            known[declared.name] = _to_tool(path, declared)
    return _choose(body, known)


def _to_tool(path: str, declared: FunctionDeclaration) -> dict[str, Any]:
    if not _NAME.fullmatch(declared.name):
        accepted = "1 to 128 letters, digits, _ . : or -, a letter or _ first"
        raise unexpected(f"{path}.name", declared.name, accepted)
    native, parameters = declared.parameters, declared.parametersJsonSchema
    check_free(f"{path}.parameters", native if parameters is None else parameters)
    if parameters is None:
        parameters = _NO_PARAMETERS if native is None else to_json_schema(native)
    function = {
        "name": declared.name,
        "description": declared.description or "",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _choose(body: GenerateContentRequest, known: Tools) -> tuple[list[dict[str, Any]], ToolChoice]:
    config = body.toolConfig.functionCallingConfig if body.toolConfig else None
    if config is None:
        return [*known.values()], ToolChoice(mode="auto" if known else "none")
    path, sent = "toolConfig.functionCallingConfig", (config.mode or "AUTO").upper()
    if sent not in _MODES:
        raise unexpected(f"{path}.mode", config.mode, "AUTO, ANY, NONE or VALIDATED")
    mode, names = _MODES[sent], config.allowedFunctionNames or []
    if mode == "required" and not known:
        raise unexpected(f"{path}.mode", config.mode, "functions with it")
    for name in names:
        if name not in known:
            accepted = f"names of functions: {', '.join(known) or 'none'}"
            raise unexpected(f"{path}.allowedFunctionNames", name, accepted)
    tools = [tool for name, tool in known.items() if name in names or not names]
    only = names[0] if mode == "required" and len(names) == 1 else None
    return tools, ToolChoice(mode=mode if tools else "none", name=only)
