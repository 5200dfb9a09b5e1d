"""Logs of a server: requests, usage, and payloads that reach a slow receiver by HTTP."""

import csv
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.llm import chatty
from tests.waiting import PATIENCE, eventually

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
KEY = "a-key-that-is-long-enough"
BEARER = {"authorization": f"Bearer {KEY}", "x-request-id": "request-7"}


class Receiver:
    """Receiver of CloudEvents, which answers when `is_free` is set."""

    def __init__(self) -> None:
        receiver = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.is_free.wait(PATIENCE)
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.types.add(self.headers["content-type"])
                receiver.events.extend(json.loads(body))
                self.send_response(202)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.is_free = threading.Event()
        self.events: list[dict[str, Any]] = []
        self.types: set[str] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.is_free.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def send(calls: Calls) -> None:
    body = {"model": "chatty", "prompt": "a secret", "max_tokens": 3, "ignore_eos": True}
    path = "/v1/completions?password=hidden"
    assert calls.http_call("POST", path, json.dumps(body), BEARER)[0] == 200
    assert (
        calls.http_call("POST", "/model/toy:double", '{"instances": [{"x": 2}]}', BEARER)[0] == 200
    )
    assert calls.http_call("GET", "/servables", headers={"authorization": "Bearer wrong"})[0] == 401
    unload = "/v2/repository/models/toy/unload"
    assert calls.http_call("POST", unload, "{}", BEARER)[0] == 200
    with grpc.insecure_channel(calls.grpc) as channel:
        index = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
        metadata = [("authorization", f"Bearer {KEY}")]
        assert pb.RepositoryIndexResponse.FromString(index(b"", metadata=metadata)).models


def test_logs_name_keys_and_do_not_delay_requests(tmp_path, receiver):
    chatty.build(tmp_path)
    write_servable(tmp_path, "toy", SOURCE)
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} anna")
    keys.chmod(0o600)
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20}
    servables = (config(tmp_path, "chatty", llm_options=options), config(tmp_path, "toy"))
    logs = {
        "audit_log": str(tmp_path / "audit.jsonl"),
        "usage_log": str(tmp_path / "usage.csv"),
        "payload_log": f"http://127.0.0.1:{receiver.server.server_port}/events",
        "payload_redact": ["prompt"],
    }
    with serving(tmp_path, *servables, api_keys=keys, allow_loading=True, **logs) as calls:
        send(calls)
        assert receiver.events == []
        receiver.is_free.set()
        eventually(lambda: len(receiver.events) == 4)
    assert receiver.types == {"application/cloudevents-batch+json"}
    request = next(row for row in receiver.events if row["inferenceservicename"] == "chatty")
    assert (request["id"], request["key"], request["data"]["prompt"]) == (
        "request-7", "anna", "(redacted)"
    )  # fmt: skip
    answer = next(row for row in receiver.events if row["type"].endswith("response"))
    assert answer["data"][0]["finish_reason"] == "length"
    text = (tmp_path / "audit.jsonl").read_text()
    assert not any(word in text for word in ("secret", "hidden", KEY, "wrong"))
    rows = lines_of(tmp_path / "audit.jsonl")
    shown = {(row["kind"], row.get("path", row.get("servable")), row.get("key")) for row in rows}
    assert {
        ("request", "/v1/completions", "anna"),
        ("request", "/v2/repository/models/toy/unload", "anna"),
        ("request", "/servables", None),
        ("call", "inference.GRPCInferenceService/RepositoryIndex", "anna"),
        ("inference", "chatty", "anna"),
        ("inference", "toy", "anna"),
    } <= shown
    inference = next(row for row in rows if row.get("servable") == "chatty")
    assert (inference["generated_tokens"], inference["result"]) == (3, "OK")
    assert inference["request_id"] == "request-7"
    with (tmp_path / "usage.csv").open() as file:
        used = {row[3]: row[4:] for row in csv.reader(file)}
    assert used["toy"] == ["1", "0", "0", "0", "1"]
    assert (used["chatty"][0], used["chatty"][3]) == ("1", "3")
