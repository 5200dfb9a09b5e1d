"""`mindspore-serving launch`: what an agent is told of a server, and that it starts with it."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving.cli import main
from mindspore_serving.cli.agents import AGENTS, AgentServer, environment_of
from tests.e2e.harness import ROOT
from tests.frontends.openai.serving import Web, serving
from tests.waiting import PATIENCE

PAGE = (ROOT / "docs/agents.md").read_text()
COMMANDS = re.findall(r"(?m)^mindspore-serving (launch .+)$", PAGE)


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving() as running:
        yield running


def launched(web: Web, *words: str) -> int:
    return main(["launch", words[0], "--url", web.url, *words[1:]])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_are_accepted(
    web: Web,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    at_ours = re.sub(r" --(url|model) \S+| --dry-run", "", command)
    _, program, *words = shlex.split(at_ours)
    assert launched(web, program, "--dry-run", *words) == 0
    assert program in shlex.split(capsys.readouterr().out)


def test_the_page_has_the_installation_of_each_program() -> None:
    for agent in AGENTS.values():
        assert f"| [`{agent.name}`](#{agent.title.lower().replace(' ', '-')}) " in PAGE
        assert agent.install.split(",")[0] in PAGE


def test_codex_is_told_by_arguments(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(web, "codex", "--dry-run", "--", "exec", "Say hi") == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[-2:] == ["exec", "Say hi"]
    assert 'model="toy"' in words
    assert f'model_providers.mindspore-serving.base_url="{web.url}"' in words
    assert "model_context_window=128" in words


def test_the_key_is_set_and_not_printed(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(web, "claude", "--dry-run", "--api-key", "secret") == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed
    assert 'ANTHROPIC_AUTH_TOKEN="$MINDSPORE_SERVING_API_KEY"' in printed
    server = AgentServer("http://a", "toy", key="secret", ca="/ca.pem")
    environment = environment_of(AGENTS["claude"], server)
    assert environment["ANTHROPIC_AUTH_TOKEN"] == "secret"
    assert environment["NODE_EXTRA_CA_CERTS"] == "/ca.pem"


def test_gemini_cli_has_settings_of_its_own(
    web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    home = tmp_path / "mindspore-serving" / "gemini"
    settings = home / ".gemini" / "settings.json"
    assert launched(web, "gemini", "--dry-run") == 0
    assert f"GEMINI_CLI_HOME={home}" in shlex.split(capsys.readouterr().out)
    written = json.loads(settings.read_text())
    shown = json.loads(re.findall(r"(?s)```json\n(.+?)```", PAGE)[0])
    assert {name: written[name] for name in shown} == shown
    settings.write_text("{}")
    assert launched(web, "gemini", "--dry-run") == 0
    assert settings.read_text() == "{}"  # what the user has changed stays
    settings.unlink()
    settings.parent.rmdir()
    settings.parent.write_text("")
    assert launched(web, "gemini", "--dry-run") == 1
    assert "settings of Gemini CLI cannot be written" in capsys.readouterr().err


def test_a_missing_program_is_named_with_its_installation(
    web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert launched(web, "opencode") == 1
    assert "npm install -g opencode-ai" in capsys.readouterr().err


def test_an_unknown_model_is_refused(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(web, "codex", "--model", "other") == 1
    assert "no model 'other'" in capsys.readouterr().err


def test_the_program_takes_the_place_of_the_command(web: Web, tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text('#!/bin/sh\necho "$ANTHROPIC_MODEL at $ANTHROPIC_BASE_URL: $*"\nexit 3\n')
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "mindspore_serving", "launch", "claude", "--url", web.url]
        + ["--", "-p", "hi"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (3, f"toy at {web.url.removesuffix('/v1')}: -p hi\n")
    assert f"Claude Code with toy at {web.url.removesuffix('/v1')}" in done.stderr
