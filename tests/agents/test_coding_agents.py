"""Coding agents, untouched, in a session whose steps a script decides: a file is read, edited, a
command is run, and the answer arrives.

`mindspore-serving launch` starts them, as a user does. AGENT_CLIENTS names the directory with the
programs, which scripts/agent-clients makes; they reach no network but the server.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.routing import BaseRoute

from mindspore_serving.core.llm_messages import Chunk, Event, Generate
from mindspore_serving.frontends.app_state import AppState
from tests.frontends.mounting import anthropic_routes, gemini_routes, openai_routes
from tests.frontends.openai.serving import Web, serving, whole
from tests.waiting import PATIENCE

TASK = "Paint it green."
ANSWER = "The colour is green now."
RUN = "grep -c green notes.txt > count.txt; cat count.txt notes.txt"
Step = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Session:
    """Arguments of a program, and the calls of the model for a working directory."""

    words: Sequence[str]
    steps: Callable[[str], list[Step]]


def codex(_: str) -> list[Step]:
    patch = "*** Begin Patch\n*** Update File: notes.txt\n@@\n-colour = red\n+colour = green\n"
    edit = f"apply_patch <<'END'\n{patch}*** End Patch\nEND"
    return [("exec_command", {"cmd": command}) for command in ("cat notes.txt", edit, RUN)]


def claude(work: str) -> list[Step]:
    path = f"{work}/notes.txt"
    edit = {"file_path": path, "old_string": "red", "new_string": "green"}
    return [("Read", {"file_path": path}), ("Edit", edit), ("Bash", {"command": RUN})]


def opencode(work: str) -> list[Step]:
    path = f"{work}/notes.txt"
    edit = {"filePath": path, "oldString": "red", "newString": "green"}
    return [("read", {"filePath": path}), ("edit", edit), ("bash", {"command": RUN})]


def gemini(work: str) -> list[Step]:
    path = f"{work}/notes.txt"
    edit = {
        "file_path": path,
        "instruction": "Paint it.",
        "old_string": "red",
        "new_string": "green",
    }
    return [
        ("read_file", {"file_path": path}),
        ("replace", edit),
        ("run_shell_command", {"command": RUN}),
    ]


SESSIONS = {
    "codex": Session(
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK], codex
    ),
    "claude": Session(["-p", TASK, "--dangerously-skip-permissions"], claude),
    "gemini": Session(["--skip-trust", "--yolo", "-p", TASK], gemini),
    "opencode": Session(["run", TASK], opencode),
}


@pytest.fixture
def path() -> str:
    """PATH with the programs."""
    place = os.environ.get("AGENT_CLIENTS", "")
    if not place:
        pytest.skip("AGENT_CLIENTS is not set: scripts/agent-clients DIRECTORY makes what it names")
    added = [f"{place}/npm/node_modules/.bin", f"{place}/aider/bin"]
    return os.pathsep.join([*added, os.environ["PATH"]])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("colour = red\n")
    return work


def all_routes(state: AppState) -> list[BaseRoute]:
    return [*anthropic_routes(state), *gemini_routes(state), *openai_routes(state)]


def results(request: Generate) -> list[str]:
    return [json.dumps(one["content"]) for one in request.messages or () if one["role"] == "tool"]


def script(web: Web, steps: Sequence[Step]) -> None:
    """Let the model take the next of `steps`; requests without tools are for a title."""

    def next_of(request: Generate) -> list[Event]:
        number = len(results(request))
        text = "A title"
        if request.tools:
            text = call(*steps[number]) if number < len(steps) else ANSWER
        return whole(Chunk(0, text, (65,), None, "stop"))

    web.inference.script = next_of


def call(name: str, arguments: dict[str, Any]) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def launch(web: Web, program: str, words: Sequence[str], work: Path, path: str) -> str:
    """Start a program with a home of its own; return what it printed."""
    environment = {
        "PATH": path,
        "HOME": str(work.parent),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "IS_SANDBOX": "1",  # Claude Code asks for it where root runs it
        "TERM": "dumb",
    }
    url = web.url.removesuffix("/v1")
    started = [sys.executable, "-m", "mindspore_serving", "launch", program, "--url", url, "--"]
    done = subprocess.run(
        [*started, *words],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", SESSIONS)
def test_an_agent_reads_edits_runs_and_answers(program: str, work: Path, path: str) -> None:
    session = SESSIONS[program]
    with serving(all_routes) as web:
        web.control.card = replace(
            web.control.card, tool_format="hermes", max_model_len=200000, adapters=()
        )
        script(web, session.steps(str(work)))
        assert ANSWER in launch(web, program, session.words, work, path)
        calls = [one.sent for one in web.inference.calls]
    read, _, ran = max((results(request) for request in calls), key=len)
    assert "colour = red" in read
    assert "colour = green" in ran
    assert (work / "notes.txt").read_text() == "colour = green\n"
    assert (work / "count.txt").read_text() == "1\n"


def test_aider_edits_a_file(work: Path, path: str) -> None:
    words = ["--no-git", "--yes-always", "--no-check-update", "--no-analytics",
             "--no-show-model-warnings", "--message", TASK, "notes.txt"]  # fmt: skip
    with serving(all_routes) as web:
        web.control.card = replace(web.control.card, max_model_len=200000)
        text = f"{ANSWER}\n\nnotes.txt\n```\ncolour = green\n```\n"
        web.says(Chunk(0, text, (65,), None, "stop"))
        assert ANSWER in launch(web, "aider", words, work, path)
    assert (work / "notes.txt").read_text() == "colour = green\n"
