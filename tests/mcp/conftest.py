"""Real MCP servers, processes of the official SDK, and models that call their tools."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Event
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.mcp.config import McpServerConfig
from mindspore_serving.mcp.servers import McpServers
from mindspore_serving.process.child_log import ChildLog
from tests.frontends.mounting import anthropic_routes, openai_routes
from tests.frontends.openai.serving import CARD, Web, serving, spoken, whole

SKIP = "needs the SDK: pip install 'mindspore-serving[mcp]'"
HERE = Path(__file__).parent


def config(bad: str = "", **fields: Any) -> McpServerConfig:
    """A server of the SDK, or one that is bad in a way."""
    args = (str(HERE / "bad_server.py"), bad) if bad else (str(HERE / "tool_server.py"),)
    return McpServerConfig(command=sys.executable, args=args, **fields)


def open_servers(place: Path, **configs: McpServerConfig) -> McpServers:
    return McpServers(configs, lambda name: ChildLog(place / f"{name}.log"))


def mount(state: AppState) -> list[Any]:
    return [*anthropic_routes(state), *openai_routes(state)]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A model that calls tools as Hermes does, and its MCP servers."""
    place = tmp_path_factory.mktemp("mcp")
    mark = {"MARK": str(place / "mark")}
    servers = open_servers(
        place,
        tools=config(env=mark, timeout_seconds=60.0, max_output_bytes=256),
        twice=config("twice"),
        hung=config("hangs", timeout_seconds=0.2),
    )
    with serving(mount, mcp=servers) as web:
        web.control.card = replace(CARD, tool_format="hermes", max_model_len=4096)
        web.mark = place / "mark"  # type: ignore[attr-defined]
        yield web
        web.run(servers.close())


def calling(*calls: tuple[str, Any]) -> list[Event]:
    """What a model says to call tools."""
    texts = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return spoken(*(f"<tool_call>\n{text}\n</tool_call>" for text in texts))


def rounds(web: Web, *said: Sequence[Event]) -> None:
    """Let the model say one thing after another; then "Done"."""
    answers = iter(said)
    web.inference.calls.clear()
    web.inference.script = lambda request: whole(*next(answers, spoken("Do", "ne")))
