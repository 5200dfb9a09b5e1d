"""Distributed servables that cannot start, and agents that may not join: each says the reason."""

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.distributed import agents
from tests.e2e.gangs import GangScripts, processes_in


@pytest.fixture
def scripts(stopped: Path) -> Iterator[Callable[..., GangScripts]]:
    made: list[GangScripts] = []

    def make(*args: Any, **kwargs: Any) -> GangScripts:
        made.append(GangScripts(stopped / "gang", *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_agents_that_cannot_load_a_model_end_both_scripts(scripts):
    made = scripts()
    made.write("broken.py", "import no_such_library\n")
    server, agents = made.start_server(), made.start_agents(["model.py", "broken.py"])
    assert (server.status(), agents.status()) == (1, 1)
    assert "Failed to start agents, rank 1: Model file" in agents.text
    for text in (agents.text, server.text):
        assert "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'" in text
    assert "Fail to start workers: distributed servable big: " in server.text
    assert processes_in(made.directory) == []


def test_agents_of_other_shapes_end_with_the_server_and_the_reason(scripts):
    made = scripts()
    for name, size in (("a.py", 3), ("b.py", 4)):
        made.write(
            name,
            "import numpy as np\n"
            "from mindspore_serving.core.value import Signature, TensorSpec\n"
            f"spec = TensorSpec('x', np.dtype('f4'), (-1, {size}))\n"
            "def model(x):\n    return x\n"
            "model.signature = Signature((spec,), (spec,))\n",
        )
    script, reason = made.start_agents(["a.py", "b.py"]), "of a stage should be the same"
    with pytest.raises(RuntimeError, match=f"the inputs of ranks {reason}: of sub-graph 0"):
        made.start_server_here()
    assert script.status() == 1
    assert f"the inputs of ranks {reason}: of sub-graph 0" in script.text


def test_a_server_whose_agents_do_not_come_says_which(scripts):
    with pytest.raises(RuntimeError, match="agents of ranks 0, 1 have not joined within 1 s"):
        scripts().start_server_here(wait_agents_time_in_seconds=1)


def test_a_server_that_waits_for_agents_ends_by_a_signal(scripts):
    made = scripts()
    server = made.start_server()
    wrong = {"SERVING_DISTRIBUTED_TOKEN": "guessed"}
    agents = made.start_agents(environment=wrong)
    assert agents.status() == 1
    assert "the worker refuses: wrong token" in agents.text  # it listens
    server.send(signal.SIGINT)
    assert server.status() != 0
    assert processes_in(made.directory) == []


def test_missing_files_of_ranks_end_the_server_and_the_agents(scripts):
    made = scripts()
    script, reason = made.start_agents(["model.py"]), "Card count 2 described rank table does not"
    with pytest.raises(RuntimeError, match=reason):
        made.start_server_here()
    assert script.status() == 1
    assert f"{reason} equal to model files size 1" in script.text


def test_agents_without_a_server_say_so(scripts, monkeypatch):
    monkeypatch.setattr(agents, "SEARCH_SECONDS", 0.5)
    made = scripts()
    reason = f"no worker of a distributed servable answered at {made.agents} within 0.5 s"
    with pytest.raises(RuntimeError, match=reason):
        made.start_agents_here()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("distributed.declare_servable(4, 1)", "it has 2 ranks, the servable is declared with 4"),
        ("distributed.declare_servable(2, 2)", "a servable of several stages needs 8 ranks"),
        ("register.declare_model(lambda x: x, 'Python')", "has no distributed.declare_servable"),
    ],
)
def test_a_servable_that_does_not_fit_is_a_single_error(scripts, config, reason):
    made = scripts()
    head, _, rest = (made.directory / "big/servable_config.py").read_text().partition("model =")
    body = rest.partition("\n")[2]
    made.write("big/servable_config.py", f"{head}model = {config}\n{body}")
    with pytest.raises(RuntimeError, match=re.escape(reason)):
        made.start_server_here()
