"""The case of a number: what the fuzzer sends is decided by a seed and a number alone."""

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz import byte_edits, http_edits, json_edits, proto_edits
from tests.fuzz.case import H2, HTTP, METHODS, PROTOCOLS, Case, parse, seeds

MOST = 1 << 20  # bytes of a case
_WEIGHTS = {"openai": 6, "classic": 3, "grpc": 3, "http": 4, "tgi": 2, "llm_serving": 2}


class Maker:
    """Makes cases of the seeds of `protocols`; the same for the same `seed` and number."""

    def __init__(self, seed: int, protocols: Sequence[str] = PROTOCOLS) -> None:
        self._seed = seed
        self._protocols = list(protocols)
        self._weights = [_WEIGHTS.get(name, 1) for name in protocols]
        self._seeds = {name: seeds(name) for name in protocols}
        self._known = {name: _known(cases) for name, cases in self._seeds.items()}

    def make(self, number: int) -> Case:
        random = Random(f"{self._seed} {number}")
        (protocol,) = random.choices(self._protocols, self._weights)
        start = random.choice(self._seeds[protocol])
        data = self._edit(start, random)
        return Case(protocol, start.channel, data[:MOST], f"{number} from {start.origin}")

    def _edit(self, start: Case, random: Random) -> bytes:
        if random.random() < 0.02:
            return start.data
        if start.channel in METHODS:
            return proto_edits.edit(start.data, random)
        if start.channel == H2:
            return byte_edits.edit(start.data, random)
        if start.protocol == HTTP:
            others = [case.data for case in self._seeds[HTTP]]
            return http_edits.edit_framing(start.data, others, random)
        return _edit_request(start.data, self._known[start.protocol], random)


def _edit_request(data: bytes, known: Sequence[json_edits.Field], random: Random) -> bytes:
    try:
        request = parse(data)
    except ValueError:  # what was found once may be no request
        return byte_edits.edit(data, random)
    kind = random.random()
    if kind < 0.1 or not request.body:
        request = http_edits.edit_head(request, random)
    if kind < 0.2:
        request = replace(request, body=byte_edits.edit(request.body, random))
    else:
        request = replace(request, body=_edit_body(request.body, known, random))
    return request.to_bytes()


def _edit_body(body: bytes, known: Sequence[json_edits.Field], random: Random) -> bytes:
    value = _load(body)
    if value is None:
        return byte_edits.edit(body, random)
    return json_edits.dump(json_edits.edit(value, known, random))


def _load(body: bytes) -> Any:
    """None if it is no JSON, or too deep."""
    try:
        value = json.loads(body)
        json_edits.dump(value)  # Python 3.12 and later parse deeper than its functions may recurse
    except (ValueError, RecursionError):
        return None
    return value


def _known(cases: Sequence[Case]) -> list[json_edits.Field]:
    """The fields that the requests of a protocol have."""
    bodies = [case.data.partition(b"\r\n\r\n")[2] for case in cases if case.channel == HTTP]
    return [field for body in bodies for field in json_edits.fields_of(_load(body))]
