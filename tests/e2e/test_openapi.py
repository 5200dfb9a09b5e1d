"""/openapi.json of a real server: what it describes is there, and works when it is sent."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from tests.e2e.described import described, document
from tests.e2e.harness import Calls

ROOT = Path(__file__).resolve().parents[2]
JSON = "application/json"


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    place = tmp_path_factory.mktemp("described")
    options = {"use_status_codes": True, "allow_loading": True, "client_shared_memory": True}
    with described(place, **options) as found:
        yield found


@pytest.fixture(scope="module")
def whole(calls: Calls) -> Any:
    return document(calls)


def test_the_document_is_valid(whole: Any) -> None:
    validate = pytest.importorskip("openapi_spec_validator").validate
    assert whole["openapi"].startswith("3.1")
    validate(whole)


def test_every_example_works_when_sent(calls: Calls, whole: Any) -> None:
    refused, sent = [], 0
    for path, verbs in whole["paths"].items():
        for operation in verbs.values():
            contents = operation.get("requestBody", {"content": {}})["content"]
            content = contents.get(JSON, {})  # others are forms
            is_of_another_model = path in ("/v1/embeddings", "/infill", "/v1/audio/speech")
            if "example" not in content or "{" in path or is_of_another_model:
                continue
            headers = {"Content-Type": JSON}
            status, answer = calls.http_call("POST", path, json.dumps(content["example"]), headers)
            sent += 1
            if status != 200:
                refused.append((path, status, answer))
    assert refused == []
    assert sent > 20


def test_a_method_has_the_types_and_shapes_of_its_model(whole: Any) -> None:
    operation = whole["paths"]["/model/toy:predict"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    instance = body["properties"]["instances"]["anyOf"][0]["items"]
    assert instance["required"] == ["x"]
    plain = instance["properties"]["x"]["anyOf"][0]
    number = {"type": ["number", "null"]}  # null is a missing value
    assert plain == {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
    inputs = whole["paths"]["/v2/models/toy/infer"]["post"]["requestBody"]["content"]
    tensor = inputs["application/json"]["schema"]["properties"]["inputs"]["items"]["properties"]
    assert tensor["datatype"] == {"const": "FP32"}
    assert tensor["shape"]["description"] == "[instances, 2]"


def test_a_method_that_streams_has_its_second_path(whole: Any) -> None:
    answers = whole["paths"]["/model/toy:letters_stream"]["post"]["responses"]["200"]["content"]
    assert set(answers) == {"text/event-stream"}
    assert "/model/toy:show_stream" not in whole["paths"]


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("OPTIONS", "/v1/models/toy:predict", None, 204),
        ("GET", "/v1/models/toy:predict", None, 405),
        ("POST", "/v2/repository/index", {"ready": None}, 200),
        ("POST", "/v2/repository/index", {"ready": "yes"}, 400),
        ("POST", "/api/chat", {"options": {"min_p": [1]}}, 400),
        ("POST", "/api/generate", {"options": {"top_k": "x"}}, 400),
    ],
)
def test_requests_outside_the_document_are_refused(calls: Calls, verb, path, body, status) -> None:
    import httpx

    url = f"http://127.0.0.1:{calls.http}{path}"
    answer = httpx.request(verb, url, json=body)
    assert answer.status_code == status, answer.text
    if "predict" in path:
        assert answer.headers["allow"] == ("POST, OPTIONS" if verb == "OPTIONS" else "POST")


def test_the_document_is_kept_while_nothing_changes(calls: Calls) -> None:
    import httpx

    url = f"http://127.0.0.1:{calls.http}/openapi.json"
    tag = httpx.get(url).headers["etag"]
    assert httpx.get(url, headers={"if-none-match": tag}).status_code == 304


def test_the_document_changes_as_models_come_and_go(calls: Calls) -> None:
    def has(path: str) -> bool:
        return path in document(calls)["paths"]

    assert has("/model/toy:predict")
    server.unload_servable("toy")
    assert not has("/model/toy:predict")
    assert has("/model/{servable}:{method}")
    server.load_servable("toy")
    assert has("/model/toy:predict")


@pytest.mark.long
def test_schemathesis_finds_no_answer_outside_the_document(calls: Calls, tmp_path: Path) -> None:
    """A few requests for each operation, always the same; `make schemathesis` sends more."""
    pytest.importorskip("schemathesis")
    url = f"http://127.0.0.1:{calls.http}/openapi.json"
    words = [sys.executable, "-m", "tests.openapi_calls", url, "--examples", "2"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
