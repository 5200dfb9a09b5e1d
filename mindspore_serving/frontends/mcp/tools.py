"""Methods of classic servables as tools: one call has one instance, with the values of REST.

Knows no transport and none of the SDK.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from mindspore_serving.core.service import Request
from mindspore_serving.errors import NotFound, did_you_mean
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.openapi.methods import DescribedServable, list_servables
from mindspore_serving.frontends.openapi.values import instance_schema
from mindspore_serving.frontends.replies import infer
from mindspore_serving.mcp.names import tool_name

Object = dict[str, Any]


def list_tools(state: AppState) -> list[Object]:
    """Return the tools: the methods of the newest version of each servable."""
    tools = []
    for name, served, method in _methods(state):
        signature = served.signature.methods[method]
        tool = {
            "name": name,
            "description": f"Method {method} of the model {served.name}, on one example.",
            "inputSchema": instance_schema(signature.inputs),
        }
        if signature.outputs:
            tool["outputSchema"] = instance_schema(signature.outputs, is_output=True)
        tools.append(tool)
    return tools


async def call_tool(
    state: AppState, name: str, arguments: Object, timeout: float | None
) -> tuple[Object | None, str]:
    """Return the outputs of one example and ""; or None and why the method failed.

    Raises NotFound if there is no tool `name`.
    """
    known = {known: (served, method) for known, served, method in _methods(state)}
    if name not in known:
        raise NotFound(f"There is no tool {name!r}{did_you_mean(name, known)}")
    served, method = known[name]
    body = msgspec.json.encode({"instances": [arguments]})
    request = Request(served.name, method, 0, "ms_json", body, timeout=timeout)
    reply = await infer(state.inference, request)
    failure = reply.failure or (reply.faults[0] if reply.faults else None)
    if failure is not None:
        return None, str(failure)
    return msgspec.json.decode(reply.instances[0], type=Object), ""


def _methods(state: AppState) -> Iterator[tuple[str, DescribedServable, str]]:
    """Iterate over tool name, servable and method."""
    for served in list_servables(state):
        if not served.version and not served.is_language:
            for method in served.signature.methods:
                yield tool_name(served.name, method), served, method
