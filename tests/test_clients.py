"""docs/clients.md names the clients that the tests run, with the versions that they have there."""

import re

from tests.e2e.harness import ROOT

ROW = re.compile(r"^\| (\S.*?) \| ([\d.]+) \| .+ \| `(\S+)` \|$", re.MULTILINE)
PIN = re.compile(r"(?<![\w.-])([\w.-]+)(?:\[[\w,]+\])?==([\d.]+)")
# Clients among all that is pinned; the environments have nothing else.
CLIENTS = (
    *(
        "anthropic",
        "cohere",
        "google-genai",
        "grpcio-health-checking",
        "huggingface_hub",
        "langchain-openai",
        "mcp",
    ),
    *("ollama", "openai", "schemathesis", "tritonclient"),
)


def documented() -> dict[str, tuple[str, str]]:
    """Version and place of each client."""
    text = (ROOT / "docs/clients.md").read_text()
    found = {name: (version, place) for name, version, place in ROW.findall(text)}
    assert found
    return found


def pins(path: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / path).read_text()))


def test_the_table_has_the_versions_that_are_tested() -> None:
    constraints = pins("constraints.txt")
    tested = {name: constraints[name] for name in CLIENTS}
    tested |= pins("tests/agents/environments.txt") | pins("scripts/kserve-client")
    npm = re.findall(r" (@?[a-z]\S+)@([\d.]+)", (ROOT / "scripts/agent-clients").read_text())
    assert len(npm) == 5
    tested |= {f"npm {name}": version for name, version in npm}
    assert {name: version for name, (version, _) in documented().items()} == tested


def test_the_places_of_the_tests_are_there() -> None:
    for name, (_, place) in documented().items():
        assert (ROOT / place).is_dir(), (name, place)
