"""`mindspore-serving launch`: start a coding agent with a model of a running server."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import NoReturn

from mindspore_serving.cli import openai
from mindspore_serving.cli.agents import AGENTS, Agent, AgentServer, environment_of
from mindspore_serving.cli.endpoint import API_KEY, to_endpoint, to_key
from mindspore_serving.cli.terminal import state_directory
from mindspore_serving.cli.tool_settings import LaunchSettings
from mindspore_serving.errors import NotFound, StartError

_SECONDS = 30.0  # to ask the server for its models


def run(settings: LaunchSettings) -> int:
    """Replace this process by the agent; with --dry-run, print the command.

    Raises ServingError.
    """
    agent = AGENTS[settings.program]
    endpoint = to_endpoint(settings.url, settings)
    model = openai.choose(endpoint, settings.model, _SECONDS)
    server = AgentServer(
        endpoint.url, model.name, model.context, to_key(settings), settings.tls_ca or ""
    )
    environment = {**environment_of(agent, server), **_prepare(agent)}
    words = [agent.name, *agent.arguments(server), *settings.arguments]
    if settings.dry_run:
        print(" ".join([*_shown(environment, server.key), *map(shlex.quote, words)]))
        return 0
    path = shutil.which(agent.name)
    if path is None:
        raise NotFound(f"{agent.title} ({agent.name}) is not installed: {agent.install}")
    print(f"{agent.title} with {server.model} at {server.url}", file=sys.stderr)
    for line in (*_shown(environment, server.key), shlex.join(words)):
        print(f"  {line}", file=sys.stderr, flush=True)
    return _become(path, words, environment)


def _prepare(agent: Agent) -> dict[str, str]:
    """Write the settings of an agent with a home of its own, if it has none; return its variable.

    Raises StartError if they cannot be written.
    """
    if agent.home is None:
        return {}
    directory = state_directory() / agent.name
    path = directory / agent.home.path
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(agent.home.settings)
    except OSError as error:
        raise StartError(f"the settings of {agent.title} cannot be written: {error}") from None
    return {agent.home.variable: str(directory)}


def _become(path: str, words: list[str], environment: Mapping[str, str]) -> NoReturn:
    os.execve(path, words, {**os.environ, **environment})


def _shown(environment: Mapping[str, str], key: str) -> list[str]:
    """Return assignments of a shell, with the name of its variable in place of the key."""
    return [
        f'{name}="${API_KEY}"' if key and value == key else f"{name}={shlex.quote(value)}"
        for name, value in environment.items()
    ]
