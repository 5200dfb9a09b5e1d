"""Libraries of agents against a model that does what the test tells it to: tools are called, their
results come back, and answers have their form.

Each is in an environment of its own: `scripts/agent-clients DIRECTORY` makes them, and
AGENT_CLIENTS=DIRECTORY names it.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Event, Generate
from tests.frontends.openai.serving import Web, serving, whole
from tests.waiting import PATIENCE

PROGRAMS = Path(__file__).with_name("programs.py")
PERSON = {"name": "Anna", "age": 31}
TOOLS = ["pydantic-ai tools", "openai-agents", "llama-index", "smolagents", "dify"]
FORMS = ["instructor TOOLS", "instructor JSON_SCHEMA", "pydantic-ai ToolOutput",
         "pydantic-ai NativeOutput"]  # fmt: skip


@pytest.fixture(scope="module")
def place() -> Path:
    """Where the environments are."""
    found = os.environ.get("AGENT_CLIENTS", "")
    if not found:
        pytest.skip("AGENT_CLIENTS is not set: scripts/agent-clients DIRECTORY makes what it names")
    return Path(found)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as running:
        running.control.card = replace(
            running.control.card, tool_format="generic", max_model_len=8192
        )
        running.inference.script = script
        yield running


def script(request: Generate) -> list[Event]:
    """A call of the tool that fits, or an answer to its result."""
    text = answer_to(request)
    return whole(Chunk(0, text, (65,), None, "stop"))


def answer_to(request: Generate) -> str:
    names = [tool["function"]["name"] for tool in request.tools or ()]
    last = json.dumps(request.messages[-1] if request.messages else "")
    if "sunny in Paris" in last:
        answer = "It is sunny."
        return call("final_answer", {"answer": answer}) if "final_answer" in names else answer
    if "get_weather" in names:
        return call("get_weather", {"city": "Paris"})
    return call(names[0], PERSON) if names else json.dumps(PERSON)


def call(name: str, arguments: dict[str, object]) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def run(place: Path, name: str, web: Web) -> object:
    python = place / name.split()[0] / "bin" / "python"
    environment = {**os.environ, "OPENAI_API_KEY": "none", "PYTHONPATH": ""}
    done = subprocess.run(
        [str(python), str(PROGRAMS), name, web.url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])["found"]


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_called_and_its_result_answered(place: Path, web: Web, name: str) -> None:
    assert run(place, name, web) == "It is sunny."
    last = [one.sent for one in web.inference.calls][-1]
    assert "sunny in Paris" in json.dumps(last.messages)


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_has_its_form(place: Path, web: Web, name: str) -> None:
    assert run(place, name, web) == PERSON
    assert web.answer_format.grammar is not None
