"""Logs of tenants: bounded queues, rotated files, usage as CSV and SQL, redacted payloads."""

import asyncio
import csv
import json
import sqlite3
import stat
import threading

import msgspec
import pytest

from mindspore_serving.core.llm_messages import CODEC, Generate, encode_request
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.frontends.tenants import payloads
from mindspore_serving.frontends.tenants.line_file import LineQueue, RotatedFile
from mindspore_serving.frontends.tenants.payloads import CloudEventWriter, PayloadLog, redact
from mindspore_serving.frontends.tenants.usage import UsageCounts, UsageKey
from mindspore_serving.frontends.tenants.usage_log import writer_of
from tests.waiting import PATIENCE

ROWS = [(UsageKey("ab", "anna", "big"), UsageCounts(2, 1, 30, 4, 0))]


async def test_a_writer_that_hangs_drops_lines_and_delays_nobody():
    written, is_free = [], threading.Event()

    def write(lines):
        is_free.wait(PATIENCE)
        written.extend(lines)

    queue = LineQueue("test", write, max_queued=10)
    for number in range(100):
        queue.put(b"%03d\n" % number)
        await asyncio.sleep(0)
    assert queue.num_dropped == 98
    is_free.set()
    await queue.close(PATIENCE)
    assert written == [b"000\n", b"001\n"]
    queue.put(b"more\n")
    await queue.close(PATIENCE)
    assert written[-1] == b"more\n"


async def test_lines_that_cannot_be_written_are_counted():
    def write(lines):
        raise OSError("the disk is full")

    queue = LineQueue("test", write)
    queue.put(b"1\n")
    queue.put(b"2\n")
    await queue.close(PATIENCE)
    assert queue.num_dropped == 2


def test_a_file_is_rotated_and_private(tmp_path):
    file = RotatedFile(str(tmp_path / "audit.jsonl"), max_size=10)
    for number in range(12):
        file.write([b"line %02d\n" % number])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    assert (tmp_path / "audit.jsonl.1").read_bytes() == b"line 10\nline 11\n"
    assert stat.S_IMODE((tmp_path / "audit.jsonl.1").stat().st_mode) == 0o600


def test_usage_is_appended_to_a_csv_file(tmp_path):
    for _ in range(2):
        writer_of(str(tmp_path / "usage.csv"))(ROWS)
    with (tmp_path / "usage.csv").open() as file:
        rows = list(csv.reader(file))
    assert [row[1:] for row in rows] == 2 * [["ab", "anna", "big", "2", "1", "30", "4", "0"]]


def test_usage_is_appended_to_a_database(tmp_path):
    path = tmp_path / "usage.sqlite"
    for _ in range(2):
        writer_of(str(path))(ROWS)
    with sqlite3.connect(path) as connection:
        query = "SELECT key, servable, sum(requests), sum(prompt_tokens) FROM serving_usage"
        assert connection.execute(query).fetchall() == [("anna", "big", 4, 60)]
    connection.close()


def test_fields_are_redacted_at_any_depth():
    value = {"a": {"secret": [1, 2], "b": [{"secret": "x", "c": 1}]}, "secret": None}
    shown = {"a": {"secret": "(redacted)", "b": [{"secret": "(redacted)", "c": 1}]}}
    assert redact(value, frozenset({"secret"})) == {**shown, "secret": "(redacted)"}


def events_of(request: Request, *replies: Reply, redacted=()) -> list[dict[str, object]]:
    queued: list[bytes] = []
    answer = PayloadLog(queued.append, 1.0).begin(request, "id-1", "anna")
    for reply in replies:
        answer.take(reply)
    written: list[bytes] = []
    CloudEventWriter(written.extend, redacted)(queued)
    return [json.loads(line) for line in written]


def test_requests_to_language_models_are_events_of_json():
    body = encode_request(Generate(messages=[{"role": "user", "content": "my secret"}]))
    request = Request("big", "@generate", 0, CODEC, body)
    (event,) = events_of(request, redacted=["content"])
    assert event["type"] == "org.kubeflow.serving.inference.request"
    assert (event["specversion"], event["id"], event["key"]) == ("1.0", "id-1", "anna")
    assert event["data"]["messages"] == [{"role": "user", "content": "(redacted)"}]


def test_bytes_that_are_no_json_are_left_out_if_fields_are_redacted():
    request = Request("toy", "double", 0, "other", b"\xff\x00")
    assert events_of(request)[0]["data_base64"] == "/wA="
    (event,) = events_of(request, redacted=["x"])
    assert event["data"] == "(redacted)"


def test_long_answers_have_no_data(monkeypatch):
    monkeypatch.setattr(payloads, "MAX_PAYLOAD", 10)
    request = Request("toy", "double", 0, "ms_json", b"[1]")
    replies = (Reply([b"[2]"], is_last=False), Reply([b"1" * 8]))
    first, last = events_of(request, *replies)
    assert (first["data"], last["truncated"], "data" in last) == ([1], True, False)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0), (0.5, 5), (1.0, 10)])
def test_a_share_of_requests_is_logged(rate, expected):
    queued: list[bytes] = []
    draws = iter(number / 10 for number in range(10))
    log = PayloadLog(queued.append, rate, lambda: next(draws))
    for _ in range(10):
        log.begin(Request("toy", "double", 0, "ms_json", b"1"), "", "")
    assert len(queued) == expected
    assert all(msgspec.msgpack.decode(line) for line in queued)
