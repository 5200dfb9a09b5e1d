"""What no route may do unless its row says so: answer without a key, or to web pages of others."""

from collections.abc import Iterator

import pytest

from mindspore_serving.frontends.protocols import ROUTES
from mindspore_serving.frontends.routes import HttpRoute
from tests.e2e.described import described
from tests.e2e.harness import Calls

KEY = "a-key-that-is-long-enough"
KEYED = {"Authorization": f"Bearer {KEY}"}
PLACES = {
    "{name}": "toy",
    "{verb}": "generateText",
    "{name:path}": "toy",
    "{servable:path}": "toy",
    "{version}": "1",
    "{repository}": "models",
    "{item}": "msg_0",
    "{region}": "input",
    "{digest}": "sha256:0",
}
WRONG = (None, "", "Bearer", "Bearer ", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x")


def path_of(row: HttpRoute) -> str:
    path = row.path
    if path.endswith("/{path:path}"):
        return path.replace("{path:path}", "toy:predict" if "model" in path else "x/model/toy:text")
    for name, place in PLACES.items():
        path = path.replace(name, place)
    assert "{" not in path, path
    return path


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "front ends"])
def locked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Calls]:
    """A server of a method and a language model, which wants KEY."""
    place = tmp_path_factory.mktemp("routes")
    options = {"api_keys": [KEY], "front_ends": request.param, "use_status_codes": True}
    with described(place, **options) as calls:
        yield calls


of_every_row = pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.verb} {row.path}")


@of_every_row
def test_a_route_needs_a_key(locked: Calls, row: HttpRoute) -> None:
    for header in WRONG:
        headers = {} if header is None else {"Authorization": header}
        body = b"{}" if row.verb == "POST" else None
        status, answer = locked.http_call(row.verb, path_of(row), body, headers)
        assert (status != 401) == row.is_open, (header, status)
        assert KEY.encode() not in answer


@of_every_row
def test_a_route_refuses_forms_of_other_sites(locked: Calls, row: HttpRoute) -> None:
    for origin in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {**KEYED, **origin, "Content-Type": kind}
            status, _ = locked.http_call("POST", path_of(row), b"{}", headers)
            assert (status != 403) == row.is_open, (headers, status)


@of_every_row
def test_a_route_refuses_forms_without_an_origin(locked: Calls, row: HttpRoute) -> None:
    headers = {**KEYED, "Content-Type": "Text/Plain; charset=UTF-8"}
    status, _ = locked.http_call("POST", path_of(row), b"{}", headers)
    assert (status != 415) == (row.is_open or row.accepts_text_plain), status


def test_unknown_paths_are_refused_too(locked: Calls) -> None:
    for path in ("/health/", "//health", "/health%2f", "/no/such/path", "/v1/nothing", "/v2x"):
        assert locked.http_call("GET", path)[0] == 401
        headers = {**KEYED, "Origin": "https://evil.example"}
        assert locked.http_call("POST", path, b"{}", headers)[0] == 403
