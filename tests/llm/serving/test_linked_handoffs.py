"""Prompts that a worker on another machine computes: over TLS, over slow links and cut ones."""

from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.core.placement import GroupCredentials, LinkSettings
from mindspore_serving.llm.engine.handoff_choice import HandoffCosts
from mindspore_serving.llm.serving import handoffs
from mindspore_serving.tls import make_group_certificate
from tests.llm.serving.test_handoffs import (
    GREEDY,
    SEEDED,
    Pair,
    build,
    num_memories,
    prompt,
    renewed,
    texts,
)
from tests.slow_link import SlowLink

CREDENTIALS, FOREIGN = (GroupCredentials(*make_group_certificate()) for _ in range(2))


class Linked(Pair):
    """A worker that computes prompts at 127.0.0.2, and one that decodes at 127.0.0.3."""

    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        for worker, host in ((self.prefill, "127.0.0.2"), (self.decode, "127.0.0.3")):
            worker.engine.link(LinkSettings(host, host, "127.0.0.1", CREDENTIALS))
        self.decode.engine.hand_off(self.caller)  # again, with links
        self.link = None
        run = self.caller.run
        self.caller.run = lambda call_id, request: run(call_id, self.over_link(request))

    def over_link(self, request):
        if self.link is None:
            return request
        return msgspec.structs.replace(request, host="127.0.0.1", port=self.link.port)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with closing(Linked(build(tmp_path_factory))) as pair:
        yield pair


@pytest.fixture
def pair(opened, monkeypatch):
    return renewed(opened, monkeypatch)


@pytest.fixture
def link(pair):
    """A link between the workers, of which tests choose the speed."""
    pair.link = SlowLink(("127.0.0.3", pair.decode.engine._links.listener.port))
    yield pair.link
    pair.link.close()
    pair.link = None


def set_costs(costs, values):
    for name in HandoffCosts.__slots__:
        setattr(costs, name, getattr(values, name))


def assert_answered(pair, request):
    """Assert that the answer is that of a worker which does both."""
    assert texts(pair.answer(request)) == texts(pair.answer(request, pair.alone))


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "sampled"])
def test_answers_over_a_link_are_those_of_a_worker_that_does_both(pair, link, params):
    count = pair.stats().num_handoffs if pair.stats() else 0
    request = Generate(prompt=prompt(1 if params is GREEDY else 2), params=params)
    events = pair.answer(request)
    assert texts(events) == texts(pair.answer(request, pair.alone))
    assert (events[-1].num_prompt_tokens, events[-1].num_cached_tokens) == (301, 0)
    pair.until(lambda: pair.stats().num_handoffs >= count + 1)
    assert link.num_bytes > 9 * pair.decode.engine._runner.block_bytes
    assert pair.decode.engine._loop._engine.imports.costs.wire > 0
    pair.until(lambda: not num_memories() and not pair.prefill.engine.num_open)


def test_blocks_that_the_other_machine_has_cached_are_sent_at_once(pair, link):
    pair.answer(Generate(prompt=prompt(3), params=GREEDY), pair.prefill)
    assert pair.answer(Generate(prompt=prompt(3), params=GREEDY))[-1].num_cached_tokens == 288


def test_a_prompt_is_computed_here_if_the_certificate_is_wrong(pair, monkeypatch):
    settings = pair.prefill.engine._links.settings
    foreign = LinkSettings(settings.machine, settings.listen_host, "", FOREIGN)
    monkeypatch.setattr(pair.prefill.engine._links, "settings", foreign)
    failed = pair.stats().num_handoffs_failed
    assert_answered(pair, Generate(prompt=prompt(4), params=GREEDY))
    pair.until(lambda: pair.stats().num_handoffs_failed > failed)
    pair.until(lambda: not num_memories() and not pair.prefill.engine.num_open)


def test_a_prompt_is_computed_here_if_the_link_is_cut(pair, link, monkeypatch):
    monkeypatch.setattr(handoffs, "patience", lambda *_: 0.2)
    link.cut()
    failed = pair.stats().num_handoffs_failed
    assert_answered(pair, Generate(prompt=prompt(5), params=GREEDY))
    pair.until(lambda: pair.stats().num_handoffs_failed > failed)
    assert len(pair.caller.dropped) == 1
    assert num_memories() == 0


def test_a_prompt_is_computed_here_if_the_link_ends_in_the_middle(pair, link):
    link.rate = 200_000
    request = Generate(prompt=prompt(6), params=GREEDY)
    failed = pair.stats().num_handoffs_failed
    _, told = pair.decode.ask(request)
    pair.until(lambda: link.num_bytes > 50_000)
    link.close()
    pair.until(lambda: told and told[-1][1])
    events = [event for group, _ in told for event in group]
    assert texts(events) == texts(pair.answer(request, pair.alone))
    pair.until(lambda: pair.stats().num_handoffs_failed > failed)
    pair.until(lambda: not num_memories())


def test_prompts_are_computed_here_once_the_link_is_known_to_be_slow(pair, link, monkeypatch):
    engine = pair.decode.engine._loop._engine
    monkeypatch.setattr(engine, "config", replace(engine.config, handoff_tokens=None))
    costs, measured = engine.imports.costs, HandoffCosts(0.01, 0.001, 0.001)
    set_costs(costs, measured)
    link.rate = 250_000
    count = len(pair.caller.calls)
    assert_answered(pair, Generate(prompt=prompt(7), params=GREEDY))
    assert len(pair.caller.calls) == count + 1
    assert costs.wire > 0.05  # a block has 24 KiB
    set_costs(costs, replace(measured, wire=costs.wire))
    assert_answered(pair, Generate(prompt=prompt(8), params=GREEDY))
    assert len(pair.caller.calls) == count + 1
    # A link that was not used for a while may be faster by now.
    monkeypatch.setattr(handoffs, "FORGET_SECONDS", -1.0)
    link.rate = 1e9
    set_costs(costs, replace(measured, wire=costs.wire))
    assert_answered(pair, Generate(prompt=prompt(9), params=GREEDY))
    assert len(pair.caller.calls) == count + 2
