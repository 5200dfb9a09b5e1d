"""Roles over machines, which are processes at 127.0.0.2 and 127.0.0.3: blocks go straight from the
machine that computes a prompt to the one that decodes, and answers are those of one process."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from mindspore_serving.llm import LLM
from tests.e2e.harness import engine_of, eventually, row_of
from tests.e2e.machines import Cluster, Machine, cluster
from tests.e2e.test_roles import OPTIONS, ask, expected, memories, prompt, stopped, texts
from tests.llm import chatty

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
NAME = "chatty"
_seeds = itertools.count(100)


class Roles:
    """A server, and two machines of which each has one role."""

    def __init__(self, made: Cluster, machines: list[Machine]) -> None:
        self.calls = made.calls
        self.made, self.machines = made, machines

    def pid(self, role: str) -> int:
        """Return the worker of a role, once both are ready."""

        def ready() -> int:
            rows = row_of(self.calls, NAME)["workers"]
            numbers = {row["role"]: row["pid"] for row in rows if row["state"] == "ready"}
            return numbers[role] if len(numbers) == 2 else 0

        return eventually(ready)

    def count(self, name: str) -> int:
        return int(engine_of(self.calls, NAME)[f"num_handoffs{name}"])

    def is_willing(self) -> bool:
        """Return whether a prompt was handed off lately; after a failure none is for a while.

        Workers report on their own, so the count may be of the prompt before.
        """
        before = self.count("")
        ask(self.calls, prompt(next(_seeds)))
        return self.count("") > before


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roles")


@pytest.fixture(scope="module")
def roles(directory: Path) -> Iterator[Roles]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        with cluster(directory, local_slots=0) as made:
            machines = [
                made.join(name, "--slots", "1", "--address", f"127.0.0.{number}")
                for number, name in ((2, "a"), (3, "b"))
            ]
            chatty.build(directory, context=4096)
            counts = {"prefill": 1, "decode": 1}
            server.start_servables(
                server.ServableStartConfig(
                    str(directory), NAME, roles=counts, llm_options=OPTIONS, heartbeat_timeout=30
                )
            )
            yield Roles(made, machines)


@pytest.fixture(scope="module")
def alone(roles: Roles, directory: Path) -> Iterator[LLM]:
    """The same model in one process."""
    options: dict[str, Any] = {**OPTIONS}
    del options["handoff_tokens"]
    with LLM(directory / NAME, **options) as llm:
        yield llm


def test_answers_over_machines_equal_those_of_a_single_process(roles, alone):
    rows = row_of(roles.calls, NAME)["workers"]
    assert sorted(row["node"] for row in rows) == ["a", "b"]
    eventually(roles.is_willing)
    before = roles.count("")
    tokens = prompt(1)
    assert texts(ask(roles.calls, tokens)) == expected(alone, tokens)
    eventually(lambda: roles.count("") > before)
    engine = engine_of(roles.calls, NAME)
    assert engine["num_handoff_bytes_read"] > 0
    eventually(lambda: engine_of(roles.calls, NAME)["num_handoff_bytes_written"] > 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prompt_is_answered_if_the_other_machine_fails_meanwhile(roles, alone, number):
    eventually(roles.is_willing)
    prefill, decode = roles.pid("prefill"), roles.pid("decode")
    failed, tokens = roles.count("_failed"), prompt(10 + number)
    with stopped(prefill):
        if number == signal.SIGKILL:
            os.kill(prefill, signal.SIGKILL)
        assert texts(ask(roles.calls, tokens)) == expected(alone, tokens)
    if number == signal.SIGSTOP:
        eventually(lambda: roles.count("_failed") > failed)
    eventually(lambda: not memories(decode))
    assert roles.pid("prefill")


def test_a_lost_machine_costs_no_answer(roles, alone):
    eventually(roles.is_willing)
    tokens = prompt(60)
    (machine,) = [m for m in roles.machines if roles.pid("prefill") in m.workers()]
    os.kill(machine.pid, signal.SIGKILL)
    assert texts(ask(roles.calls, tokens)) == expected(alone, tokens)
