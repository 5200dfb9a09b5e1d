"""Coding agents that `mindspore-serving launch` starts: one row for each.

A row says how the program is told of a server: by variables of its environment and arguments.
Pure: starts nothing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindspore_serving.cli.endpoint import API_KEY

_NO_KEY = "none"  # programs that want a key get this from a server that wants none
_PROVIDER = "mindspore-serving"


@dataclass(frozen=True, slots=True)
class AgentServer:
    """Server and model that an agent uses.

    `key` is "" for a server without keys, `context` 0 if the server does not say its length,
    `ca` "" for certificates of well-known authorities.
    """

    url: str
    model: str
    context: int = 0
    key: str = ""
    ca: str = ""


@dataclass(frozen=True, slots=True)
class AgentHome:
    """A directory with settings of its own, which an agent finds by a variable.

    It is for agents whose own settings win over variables.
    """

    variable: str
    path: str  # of the settings, below the directory
    settings: str


@dataclass(frozen=True, slots=True)
class Agent:
    """A program, how it is installed, and how it is told of a server."""

    name: str
    title: str
    install: str
    environment: Callable[[AgentServer], Mapping[str, str]]
    arguments: Callable[[AgentServer], list[str]] = lambda _: []
    home: AgentHome | None = None


def _claude(server: AgentServer) -> dict[str, str]:
    sizes = ("HAIKU", "SONNET", "OPUS")
    return {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.key or _NO_KEY,
        "ANTHROPIC_MODEL": server.model,
        **{f"ANTHROPIC_DEFAULT_{size}_MODEL": server.model for size in sizes},
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Its first line of the prompt differs between conversations, so that no prefix is cached.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }


def _codex(server: AgentServer) -> list[str]:
    values: dict[str, object] = {
        "model": server.model,
        "model_provider": _PROVIDER,
        f"model_providers.{_PROVIDER}.name": "MindSpore Serving",
        f"model_providers.{_PROVIDER}.base_url": f"{server.url}/v1",
        f"model_providers.{_PROVIDER}.wire_api": "responses",
    }
    if server.key:
        values[f"model_providers.{_PROVIDER}.env_key"] = API_KEY
    if server.context:
        values["model_context_window"] = server.context
    return [word for name, value in values.items() for word in ("-c", f"{name}={_toml(value)}")]


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # TOML writes texts and integers like JSON


def _opencode(server: AgentServer) -> dict[str, str]:
    output = max(1, server.context // 4)
    limit = {"limit": {"context": server.context, "output": output}} if server.context else {}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "MindSpore Serving",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": f"{{env:{API_KEY}}}"},
        "models": {server.model: {"name": server.model, **limit}},
    }
    name = f"{_PROVIDER}/{server.model}"
    configuration = {"provider": {_PROVIDER: provider}, "model": name, "small_model": name}
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(configuration, ensure_ascii=False),
        API_KEY: server.key or _NO_KEY,
    }


def _aider(server: AgentServer) -> dict[str, str]:
    return {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": server.key or _NO_KEY}


def _gemini(server: AgentServer) -> dict[str, str]:
    return {
        "GOOGLE_GEMINI_BASE_URL": server.url,
        "GEMINI_API_KEY": server.key or _NO_KEY,
        "GEMINI_MODEL": server.model,
    }


# A sign-in with Google in the settings of the user would win over the variables; and some tasks,
# such as summaries, would use models of Google's by name.
_GEMINI_HOME = AgentHome(
    "GEMINI_CLI_HOME",
    ".gemini/settings.json",
    json.dumps(
        {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "modelConfigs": {
                "overrides": [
                    {"match": {"model": "base"}, "modelConfig": {"model": "$GEMINI_MODEL"}}
                ]
            },
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        },
        indent=2,
    ),
)
AGENTS = {
    row.name: row
    for row in (
        Agent("claude", "Claude Code", "npm install -g @anthropic-ai/claude-code", _claude),
        Agent(
            "codex",
            "Codex",
            "npm install -g @openai/codex",
            lambda server: {API_KEY: server.key} if server.key else {},
            _codex,
        ),
        Agent(
            "gemini", "Gemini CLI", "npm install -g @google/gemini-cli", _gemini, home=_GEMINI_HOME
        ),
        Agent("opencode", "OpenCode", "npm install -g opencode-ai", _opencode),
        Agent(
            "aider",
            "aider",
            "pip install aider-chat, in an environment of its own",
            _aider,
            lambda server: ["--model", f"openai/{server.model}"],
        ),
    )
}


def environment_of(agent: Agent, server: AgentServer) -> dict[str, str]:
    """Return the variables to set for an agent."""
    authority = {"NODE_EXTRA_CA_CERTS": server.ca} if server.ca else {}
    return {**agent.environment(server), **authority}
