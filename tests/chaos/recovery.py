"""Whether a server is right again after a fault."""

import json
import time
from collections.abc import Collection

from tests.chaos import asking
from tests.chaos.asking import Ask, Flight
from tests.chaos.processes import prepares, seconds_of_cpu
from tests.chaos.server import Server
from tests.waiting import PATIENCE, eventually

SERVABLES = ("toy", "good", "tiny")
_DOUBLED = (42).to_bytes(8, "little")
_WINDOW = 0.4  # seconds over which computing is measured
_AT_ONCE = 8  # requests, which the smallest limit allows
_NUM_PREPARING = 4  # processes that prepare, and the one that forks them
_MOST_CPU = 0.3  # share of one core that an idle server takes


def never_right(server: Server, gone: Collection[str], bound: float) -> list[str]:
    """The servables, but for those `gone`, that give no right answer within `bound` seconds, over
    every protocol they have; asked until they do."""
    return [
        name
        for name in SERVABLES
        if name not in gone and not _becomes_right(server, name, time.monotonic() + bound)
    ]


def _becomes_right(server: Server, name: str, until: float) -> bool:
    while not all(_is_right(server, ask, until) for ask in _asks(server, name)):
        if time.monotonic() > until or not server.is_running:
            return False
        time.sleep(0.05)  # between two looks
    return True


def _asks(server: Server, name: str) -> list[Ask]:
    if name == "tiny":
        return [asking.completion(server, 8), asking.chat(server, 4)]
    kinds = (asking.classic, asking.classic_grpc)
    # As many as there are workers, so that each is asked.
    return [kind(server, "double", 21, name) for kind in kinds for _ in range(2)]


def _is_right(server: Server, ask: Ask, until: float) -> bool:
    flight = Flight(ask)
    if flight.wait(until) != 200:
        return False
    if not isinstance(flight.answer, bytes):
        return _DOUBLED in flight.answer.SerializeToString()
    if b"choices" not in flight.answer:
        return bool(json.loads(flight.answer) == {"instances": [{"y": 42}]})
    text = json.loads(flight.answer)["choices"][0].get("text", server.text)
    server.text = server.text or text
    return bool(text == server.text)


def warm_up(server: Server) -> None:
    """Have it do a little of everything, so that what it keeps for good does not count later."""
    asks = [asking.completion(server, 4 * n) for n in range(1, 17)]
    asks += [asking.classic(server, "nap", 0.01) for _ in range(16)]
    asks += [asking.classic_grpc(server, "nap", 0.01) for _ in range(16)]
    for start in range(0, len(asks), _AT_ONCE):
        for flight in [Flight(ask) for ask in asks[start : start + _AT_ONCE]]:
            code = flight.wait(time.monotonic() + PATIENCE)
            assert code == 200, f"a new server answers {code}"
    assert not never_right(server, (), PATIENCE), server.script.text
    eventually(lambda: sum(map(prepares, server.pids())) == _NUM_PREPARING)


def is_quiet(server: Server, bound: float) -> bool:
    """Whether its processes stop computing within `bound` seconds."""
    until = time.monotonic() + bound
    while True:
        pids = server.pids()
        before = sum(map(seconds_of_cpu, pids))
        time.sleep(_WINDOW)
        if sum(map(seconds_of_cpu, pids)) - before < _MOST_CPU * _WINDOW:
            return True
        if time.monotonic() > until:
            return False
