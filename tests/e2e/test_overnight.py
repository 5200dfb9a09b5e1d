"""Batches of a real model over servers that are killed: each line is answered once, and rightly."""

import json
import signal
from collections import Counter
from contextlib import contextmanager

import openai
import pytest

from tests.cli.commands import SERVING, Command
from tests.e2e.harness import ROOT
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]
MODEL = str(ROOT / "examples/tiny_llm/model")
NAMES = [f"line-{number}" for number in range(40)]
ENDPOINT = "/v1/completions"


def body(name):
    prompt = f"It is a truth about {name} that"
    return {"model": "tiny", "prompt": prompt, "max_tokens": 48, "temperature": 0}


def requests():
    lines = (
        {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body(name)} for name in NAMES
    )
    return "\n".join(map(json.dumps, lines)).encode()


@contextmanager
def served(directory, port):
    words = ["serve", MODEL, "--name", "tiny", "--state", "state", "--no-grpc"]
    words += ["--http-port", str(port), "--limit", "max_batch_running=4"]
    with Command([*SERVING, *words], directory) as server:
        server.says("Ready")
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0, timeout=PATIENCE
        ) as client:
            yield server, client


def texts_of(lines):
    results = [json.loads(line) for line in lines]
    return Counter(
        (each["custom_id"], each["response"]["body"]["choices"][0]["text"]) for each in results
    )


def test_a_killed_server_goes_on_and_answers_each_line_once(tmp_path):
    port = free_port()
    with served(tmp_path, port) as (server, client):
        expected = Counter(
            (name, client.completions.create(**body(name)).choices[0].text) for name in NAMES
        )
        file = client.files.create(file=("in.jsonl", requests()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed > 3)
        server.send(signal.SIGKILL)
        server.status()
    with served(tmp_path, port) as (_, client):
        eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
        done = client.batches.retrieve(batch.id)
        assert done.request_counts.to_dict() == {"completed": 40, "failed": 0, "total": 40}
        content = client.files.content(done.output_file_id).text
    assert texts_of(content.splitlines()) == expected


def test_a_killed_run_batch_goes_on_where_the_results_end(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(requests())
    words = [*SERVING, "run-batch", "in.jsonl", "out.jsonl", MODEL, "--name", "tiny"]
    words += ["--concurrency", "2"]
    with Command(words, tmp_path) as first:
        first.says("4 of 40 requests")
        first.send(signal.SIGKILL)
        first.status()
    assert not (tmp_path / "out.jsonl").exists()
    with Command(words, tmp_path) as second:
        assert second.status() == 0, second.text
        assert "0 of 40 requests\n" not in second.lines  # it goes on
        assert "40 of 40 requests are answered in out.jsonl" in second.text
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == NAMES
    assert not (tmp_path / "out.jsonl.state").exists()
