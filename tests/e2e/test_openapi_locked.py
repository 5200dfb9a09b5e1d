"""/openapi.json of a server that wants keys and has no language model: only what may be called."""

from collections.abc import Iterator

import pytest

from tests.e2e.described import SOURCE, document
from tests.e2e.harness import Calls, config, serving, write_servable

KEY = "0123456789abcdef"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    place = tmp_path_factory.mktemp("locked")
    write_servable(place, "toy", SOURCE)
    with serving(place, config(place, "toy"), api_keys=[KEY]) as found:
        yield found


def test_the_document_wants_a_key_where_requests_do(locked: Calls) -> None:
    assert locked.http_call("GET", "/openapi.json")[0] == 401
    whole = document(locked, **BEARER)
    assert whole["security"] == [{"key": []}, {"password": []}]
    assert whole["paths"]["/readyz"]["get"]["security"] == []
    assert "security" not in whole["paths"]["/servables"]["get"]


def test_a_caller_sees_only_permitted_methods(locked: Calls) -> None:
    paths = document(locked, **BEARER)["paths"]
    assert "/v2/repository/index" in paths
    missing = ("/load", "/unload", "/systemsharedmemory", "/chat/completions", "/generate")
    assert [path for path in paths if path.endswith(missing) or "memory" in path] == []


def test_without_status_codes_errors_are_answers(locked: Calls) -> None:
    content = document(locked, **BEARER)["paths"]["/model/toy:predict"]["post"]
    schema = content["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema["anyOf"][1]["required"] == ["error_msg"]
