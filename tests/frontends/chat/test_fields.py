"""What protocols do with fields: made from their tables, and told by the documentation."""

import json
import subprocess
import sys

import msgspec
import pytest

from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields, translation
from mindspore_serving.frontends.openai.fields import CHAT, COMPLETIONS
from mindspore_serving.frontends.openai.response_fields import RESPONSES
from tests.e2e.harness import ROOT
from tests.frontends.mounting import llm_serving_routes, tgi_routes
from tests.frontends.openai.serving import CARD, Web, serving
from tests.frontends.tgi.scripted import WHOLE, Server


@translation("count", "number", to="max_tokens")
def count(body, card):
    """one more"""
    return None if body.count is None else body.count + 1


@translation("temperature")
def temperature(body, card):
    """half of it"""
    return None if body.temperature is None else body.temperature / 2


REFUSED = (
    FieldRefusal("old", "is {}, expected new"),
    FieldRefusal("temperature", "is cold", lambda t: t < 0),
)
FIELDS = Fields("tgi", REFUSED, (count, temperature), ("user",))


@FIELDS.extend
class Body(msgspec.Struct, kw_only=True):
    count: int | None = None
    number: int | None = None


def read(**given) -> Body:
    return msgspec.json.decode(json.dumps(given), type=Body)


def test_a_body_has_a_field_for_each_parameter_and_each_refusal():
    names = {one.name for one in msgspec.structs.fields(Body)}
    offered = {row.aliases["tgi"] for row in SAMPLING.values()} - {None}
    assert names == offered | {"count", "number", "old"}
    for name in ("top_p", "temperature"):  # the one as it is, the other refused and translated
        with pytest.raises(msgspec.ValidationError):
            read(**{name: {}})


def test_parameters_come_from_fields_then_translations_then_defaults():
    body = read(top_p=0.5, count=4, temperature=3)
    params = FIELDS.params(body, CARD, {"top_p": 0.1, "min_p": 0.2}, seed=3)
    assert params == SamplingParams(top_p=0.5, max_tokens=5, min_p=0.2, seed=3, temperature=1.5)
    assert FIELDS.params(read(top_p=None), CARD, {}) == SamplingParams()


def test_an_invalid_parameter_has_the_protocols_name():
    for given, name in (({"count": -9}, "count"), ({"count": -9, "number": 1}, "count")):
        with pytest.raises(InvalidField) as caught:
            FIELDS.params(read(**given), CARD, {})
        assert caught.value.field == name
        assert str(caught.value) == f"{name} is -8, expected an int >= 1"
    assert FIELDS.name_of("max_tokens", read(number=1)) == "number"
    assert FIELDS.name_of("logprobs", read()) == "top_n_tokens"
    assert FIELDS.name_of("prompt", read()) == "prompt"


def test_a_refused_field_is_shown_with_its_value():
    FIELDS.refuse(read(old=""))
    with pytest.raises(InvalidField, match=r'^old is "x", expected new$'):
        FIELDS.refuse(read(old="x"))


@pytest.fixture(scope="module")
def web():
    with serving() as running:
        yield running


GIVEN = {
    int: 2,
    float: 0.25,
    bool: True,
    list[str]: ["no"],
    list[int]: [5],
    dict[int, float]: {5: 1},
    dict[str, float]: {"no": 1},
}
TRIED = ("openai", "tgi", "llm_serving")
PLAIN = {  # sampling parameters that these protocols take as they are
    name: max(GIVEN[row.kind], row.low) if row.kind is float else GIVEN[row.kind]
    for name, row in SAMPLING.items()
    if {row.aliases[one] for one in TRIED} == {name} and name not in ("max_tokens", "stop", "seed")
}


@pytest.mark.parametrize("name", PLAIN)
async def test_every_protocol_offers_every_parameter_under_its_name(web: Web, name: str):
    given = PLAIN[name]
    expected = msgspec.convert({name: given}, SamplingParams, strict=False)
    assert web.chat(**{name: given}).status == 200
    assert getattr(web.sent.params, name) == getattr(expected, name)
    for routes, path in ((tgi_routes, "/generate"), (llm_serving_routes, "/models/tiny/generate")):
        server = Server(routes, WHOLE)
        body = {"inputs": "Hi", "parameters": {name: given, "do_sample": True}}
        assert (await server.post(path, body)).status_code == 200
        assert getattr(server.sent.params, name) == getattr(expected, name)


ROUTES = {
    "/v1/chat/completions": (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
    "/v1/completions": (COMPLETIONS, {"prompt": "x"}),
    "/v1/responses": (RESPONSES, {"input": "x"}),
}


@pytest.mark.parametrize("path", ROUTES)
def test_ignored_fields_change_nothing(web: Web, path: str):
    fields, body = ROUTES[path]
    assert web.call("POST", path, body).status == 200
    without = web.sent
    for value in (True, "x", 3, {"a": 1}):
        ignored = dict.fromkeys(fields.ignored, value)
        assert web.call("POST", path, {**body, **ignored}).status == 200
        assert web.sent == without


@pytest.mark.parametrize(
    ("path", "field"),
    [(path, one.field) for path, (fields, _) in ROUTES.items() for one in fields.refused],
)
def test_refused_fields_are_named(web: Web, path: str, field: str):
    sent = len(web.inference.calls)
    answer = web.call("POST", path, {**ROUTES[path][1], field: 7})
    assert (answer.status, answer.error["param"]) == (400, field)
    assert answer.error["message"].startswith(f"{field} is ")
    assert len(web.inference.calls) == sent


def test_the_documentation_has_the_tables_of_the_code():
    command = [sys.executable, str(ROOT / "scripts" / "field-tables"), "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "nothing to change\n"), found.stderr
