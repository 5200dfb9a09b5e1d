"""A servable whose upstream is away, comes, and goes again."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.harness import Calls, config, eventually, serving
from tests.llm.upstream.faulty import DONE, HEAD, faulty, piece
from tests.ports import free_port


def complete(calls: Calls) -> tuple[int, Any]:
    body = json.dumps({"model": "away", "prompt": "a", "max_tokens": 2})
    status, answer = calls.http_call("POST", "/v1/completions", body)
    return status, json.loads(answer)


def test_a_servable_is_not_ready_while_its_upstream_is_away(stopped: Path) -> None:
    away = free_port()
    own = {"url": f"http://127.0.0.1:{away}/v1", "health_interval": 0.1, "retries": 0}
    options = {"engine": "openai", "engine_options": {**own, "model": "far"}}
    with serving(stopped, config(stopped, "away", llm_options=options)) as calls:
        check(calls, away)


def check(calls: Calls, away: int) -> None:
    def status() -> int:
        return calls.http_call("GET", "/v2/models/away/ready")[0]

    eventually(lambda: status() != 200)
    assert calls.http_call("GET", "/health")[0] == 503
    (row,) = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    assert row["workers"][0]["state"] == "unready"
    code, answer = complete(calls)
    assert (code, "cannot be reached" in answer["error"]["message"]) == (503, True)
    with faulty(lambda _: (HEAD, piece("Good day", "stop"), DONE), away):
        eventually(lambda: status() == 200)
        assert calls.http_call("GET", "/health")[0] == 200
        code, answer = complete(calls)
        assert (code, answer["choices"][0]["text"]) == (200, "Good day")
    eventually(lambda: status() != 200)
