"""Requests made of the seeds, in every protocol: each gets an answer of its protocol's form, and
the server is as it was.  `python -m tests.fuzz` sends more.
"""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.chaos.server import Server
from tests.fuzz import known
from tests.fuzz.campaign import Campaign, start
from tests.fuzz.case import METHODS, PROTOCOLS, SEEDS, Case, read, seeds
from tests.fuzz.making import Maker
from tests.fuzz.sending import Exchanged, Lane

pytestmark = pytest.mark.e2e
REQUESTS = {"openai": 500, "http": 400}  # others 200
FOUND = [path for path in sorted(SEEDS.rglob("*")) if path.name.startswith("found-")]


async def test_a_seed_is_answered_right(server: Server) -> None:
    found = []
    async with aclosing(Lane(server.http, server.grpc)) as lane:
        for case in [case for name in PROTOCOLS for case in seeds(name)]:
            if not case.origin.startswith(("bad-", "found-")):
                found.append((case, await lane.send(case)))
    assert {case.protocol for case, _ in found} == {*PROTOCOLS}
    for case, exchanged in found:
        assert_right(case, exchanged)


def assert_right(case: Case, found: Exchanged) -> None:
    where = f"{case.protocol} {case.origin}"
    if case.channel in METHODS:
        assert found.replies, where
        assert found.status == "OK", where
    assert [answer.status for answer in found.answers] == [200] * len(found.requests.lines), where


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_no_request_harms_the_server(server: Server, protocol: str) -> None:
    maker = Maker(20, [protocol])
    campaign = Campaign(server, known.matches)
    cases = [maker.make(number) for number in range(REQUESTS.get(protocol, 200))]
    await campaign.run([case for case in cases if not known.is_skipped(case)])
    await asyncio.to_thread(campaign.finish)
    assert not campaign.report.findings, "\n".join(map(str, campaign.report.findings))


@pytest.mark.parametrize("path", [known.to_param(path) for path in FOUND])
async def test_bugs_that_fuzzing_has_found_stay_repaired(
    server: Server, path: str, tmp_path: Path
) -> None:
    own = start(tmp_path) if known.harms(path) else None
    try:
        campaign = Campaign(own or server, is_single=True)
        await campaign.run([read(SEEDS / path)])
        assert not campaign.report.findings, "\n".join(map(str, campaign.report.findings))
    finally:
        if own is not None:
            own.close()
