"""Files and batches by OpenAI's own client, over a model of the test's own."""

import json
from collections import Counter

import openai
import pytest

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.errors import Overloaded, StartError
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.state.store import StateStore
from tests.frontends.openai.serving import serving, spoken, whole
from tests.waiting import PATIENCE, eventually

ENDPOINT = "/v1/chat/completions"


def line(name, text="Hello", **fields):
    body = {"model": "toy", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    request = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": {**body, **fields}}
    return json.dumps(request)


def client_of(web, key="none"):
    return openai.OpenAI(base_url=web.url, api_key=key, max_retries=0, timeout=PATIENCE)


@pytest.fixture
def web(tmp_path):
    with serving(directory=str(tmp_path / "state")) as running:
        yield running


@pytest.fixture
def client(web):
    with client_of(web) as one:
        yield one


def upload(client, *lines, name="in.jsonl"):
    return client.files.create(file=(name, "\n".join(lines).encode()), purpose="batch")


def start(client, *lines, endpoint=ENDPOINT, **options):
    file = upload(client, *lines)
    window = options.pop("completion_window", "24h")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, **options
    )


def end(client, batch):
    def ended():
        found = client.batches.retrieve(batch.id)
        return found.status in ("completed", "failed", "expired", "cancelled") and found

    return eventually(ended)


def results(client, name):
    return [json.loads(text) for text in client.files.content(name).text.splitlines()]


def test_a_file_is_uploaded_listed_read_and_deleted(client):
    file = client.files.create(file=("in.jsonl", b"one\ntwo"), purpose="batch")
    assert (file.object, file.bytes, file.filename, file.purpose) == (
        "file",
        7,
        "in.jsonl",
        "batch",
    )
    assert client.files.retrieve(file.id) == file
    other = upload(client, "three")
    assert [each.id for each in client.files.list()] == [other.id, file.id]
    assert [each.id for each in client.files.list(order="asc", limit=1)] == [file.id, other.id]
    assert client.files.content(file.id).content == b"one\ntwo"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        client.files.content(file.id)


def test_the_bytes_of_a_large_file_do_not_change(client):
    content = bytes(range(256)) * 10_000 + b"end"  # some pieces
    big = client.with_options()
    with pytest.raises(openai.APIStatusError) as refused:
        big.files.create(file=("big", content), purpose="batch")  # over a message of the test
    assert refused.value.status_code == 413
    file = client.files.create(file=("some", content[:900_000]), purpose="batch")
    assert client.files.content(file.id).content == content[:900_000]


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"purpose": "assistants"}, "expected 'batch'"), ({"file": None}, "file is missing")],
)
def test_a_wrong_upload_is_refused_in_words(web, fields, text):
    parts = {"purpose": "batch", "file": b"x", **fields}
    form = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (name.encode(), b'; filename="f"' if name == "file" else b"", _bytes(value))
        for name, value in parts.items()
        if value is not None
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = web.call("POST", "/v1/files", form + b"--b--\r\n", headers)
    assert answer.status == 400
    assert text in answer.json["error"]["message"]
    for body, kind in ((b"{}", "application/json"), (b"nothing", "multipart/form-data")):
        answer = web.call("POST", "/v1/files", body, {"Content-Type": kind})
        assert answer.status == 400


def _bytes(value):
    return value if isinstance(value, bytes) else value.encode()


def test_a_batch_answers_each_line_once_in_openais_form(web, client):
    web.inference.script = lambda request: whole(*spoken(request.messages[-1]["content"][:1]))
    batch = start(client, line("a", "x"), line("b", "y"), "", metadata={"for": "tests"})
    assert (batch.object, batch.endpoint) == ("batch", ENDPOINT)
    done = end(client, batch)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed) == (2, 2)
    assert done.metadata == {"for": "tests"}
    assert done.error_file_id is None
    found = results(client, done.output_file_id)
    assert {each["custom_id"]: said(each) for each in found} == {"a": "x", "b": "y"}
    assert all(each["error"] is None and each["response"]["status_code"] == 200 for each in found)
    assert client.files.retrieve(done.output_file_id).purpose == "batch_output"
    assert [each.id for each in client.batches.list()] == [batch.id]
    assert all(call.sent.priority == BACKGROUND for call in web.inference.calls)
    assert all(call.request.is_background for call in web.inference.calls)


def said(result):
    return result["response"]["body"]["choices"][0]["message"]["content"]


def test_broken_lines_are_error_rows_and_right_lines_are_answered(client):
    lines = (
        "{not json",
        line("good"),
        line("good"),
        line("streamed", stream=True),
        json.dumps({"custom_id": "elsewhere", "method": "POST", "url": "/v1/nothing", "body": {}}),
        line("no model", model="nobody"),
        json.dumps({"custom_id": "list", "method": "POST", "url": ENDPOINT, "body": [1]}),
        line("number", n=17),
    )
    done = end(client, start(client, *lines))
    counts = done.request_counts
    assert (done.status, counts.total, counts.completed, counts.failed) == ("completed", 8, 1, 7)
    assert [each["custom_id"] for each in results(client, done.output_file_id)] == ["good"]
    errors = results(client, done.error_file_id)
    refused = {
        each["custom_id"]: each["response"]["status_code"] for each in errors if each["response"]
    }
    assert refused == {"no model": 404, "number": 400}
    broken = {each["error"]["line"]: each["error"]["message"] for each in errors if each["error"]}
    assert sorted(broken) == [1, 3, 4, 5, 7]
    assert "custom_id 'good' is repeated" in broken[3]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_lines_fails_its_batch(client, content):
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    done = end(client, batch)
    assert (done.status, done.errors.data[0].code) == ("failed", "invalid_file")


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "/v1/nothing"},
        {"completion_window": "soon"},
        {"completion_window": "31d"},
        {"metadata": {"a": "x" * 513}},
    ],
)
def test_a_wrong_batch_is_refused(client, options):
    with pytest.raises(openai.BadRequestError, match=next(iter(options))):
        start(client, line("a"), **options)
    with pytest.raises(openai.BadRequestError, match="there is no file"):
        client.batches.create(input_file_id="file-1", endpoint=ENDPOINT, completion_window="24h")


def test_lines_whose_prompts_begin_alike_follow_each_other(tmp_path):
    limits = LanguageLimits(max_batch_running=1)
    with serving(directory=str(tmp_path), limits=limits) as web, client_of(web) as client:
        lines = [line(str(number), f"{'ab'[number % 2]} {number}") for number in range(6)]
        end(client, start(client, *lines))
        asked = [call.sent.messages[-1]["content"] for call in web.inference.calls]
    assert asked == ["a 0", "a 2", "a 4", "b 1", "b 3", "b 5"]


def test_a_cancelled_batch_keeps_its_results(web, client):
    web.inference.script = lambda request: (
        whole(*spoken("Hi")) if request.messages[-1]["content"] == "0" else None
    )
    batch = start(client, *[line(str(number), str(number)) for number in range(4)])
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 1)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    done = end(client, batch)
    assert done.status == "cancelled"
    assert [each["custom_id"] for each in results(client, done.output_file_id)] == ["0"]
    web.inference.wait(lambda: web.inference.num_cancelled == 3)
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        client.batches.cancel(batch.id)


def test_a_restart_resumes_and_answers_each_line_once(tmp_path):
    lines = [line(str(number), str(number)) for number in range(8)]
    with serving(directory=str(tmp_path)) as web, client_of(web) as client:
        web.inference.script = lambda request: (
            whole(*spoken("A")) if request.messages[-1]["content"] in "0123" else None
        )
        batch = start(client, *lines)
        eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 4)
    with serving(directory=str(tmp_path)) as web, client_of(web) as client:
        done = end(client, batch)
        assert (done.status, done.request_counts.completed) == ("completed", 8)
        answers = Counter(
            (each["custom_id"], said(each)) for each in results(client, done.output_file_id)
        )
    assert answers == Counter([(str(number), "A" if number < 4 else "Hi!") for number in range(8)])


def test_a_batch_expires_and_its_other_requests_are_error_rows(tmp_path):
    with serving(directory=str(tmp_path)) as web, client_of(web) as client:
        web.inference.script = lambda request: None
        web.batches._now = lambda: 4e9  # long after the window
        done = end(client, start(client, line("a"), line("b")))
        assert done.status == "expired"
        errors = results(client, done.error_file_id)
    assert [each["error"]["code"] for each in errors] == ["batch_expired"] * 2


def test_a_busy_server_is_asked_again(web, client):
    answers = [Overloaded("not now")]
    web.inference.script = lambda request: answers.pop() if answers else whole(*spoken("Hi"))
    done = end(client, start(client, line("a")))
    assert (done.request_counts.completed, len(web.inference.calls)) == (1, 2)


def test_the_progress_of_running_batches_is_known(web, client):
    web.inference.script = lambda request: None
    batch = start(client, line("a"), line("b"), "{}")
    eventually(lambda: len(web.inference.calls) == 2)
    (running,) = web.run(web.batches.progress())
    assert (running.kind, running.path, running.status) == ("batch", ENDPOINT, "in_progress")
    assert (running.total, running.done, running.failed) == (3, 1, 1)
    client.batches.cancel(batch.id)
    end(client, batch)
    assert web.run(web.batches.progress()) == []


def test_a_fault_of_the_server_fails_the_batch_once(web, client, monkeypatch):
    async def broken(*_):
        raise KeyError("a bug")

    monkeypatch.setattr("mindspore_serving.frontends.state.runner.run_line", broken)
    done = end(client, start(client, line("a")))
    assert (done.status, done.errors.data[0].message) == (
        "failed", "the server failed; its log says why",
    )  # fmt: skip


def test_a_full_disk_ends_the_batch_with_an_error(web, client):
    file = upload(client, *[line(str(number)) for number in range(4)])
    web.run(web.store.run(lambda database: database.limit_pages(30)))
    web.inference.script = lambda request: whole(*spoken("x" * 40_000))
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="1h")
    done = end(client, batch)
    assert (done.status, done.errors.data[0].code) == ("failed", "storage_full")
    with pytest.raises(openai.RateLimitError, match="no room"):
        upload(client, "x" * 200_000)


def test_files_and_batches_have_limits_and_belong_to_a_key(tmp_path):
    keys = ["first-of-all-keys", "second-of-all-keys"]
    limits = LanguageLimits(max_files=2, max_files_bytes=2000, max_batch_lines=2)
    options = {"keys": [ApiKey(key) for key in keys], "limits": limits}
    with serving(directory=str(tmp_path), **options) as web:
        ours, others = (client_of(web, key) for key in keys)
        with ours, others:
            file = upload(ours, line("a"), line("b"), line("c"))
            assert not others.files.list().data
            for ask in (others.files.retrieve, others.files.content, others.files.delete):
                with pytest.raises(openai.NotFoundError):
                    ask(file.id)
            with pytest.raises(openai.BadRequestError):
                others.batches.create(
                    input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
                )
            batch = ours.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
            )
            with pytest.raises(openai.NotFoundError):
                others.batches.retrieve(batch.id)
            assert "max_batch_lines" in end(ours, batch).errors.data[0].message
            with pytest.raises(openai.RateLimitError, match="max_files=N"):
                upload(ours, "x")
            with pytest.raises(openai.RateLimitError, match="max_files_bytes"):
                upload(others, "x" * 3000)


def test_a_server_without_a_directory_has_no_files():
    with (
        serving() as web,
        client_of(web) as client,
        pytest.raises(openai.NotFoundError, match="--state DIRECTORY"),
    ):
        upload(client, line("a"))


def test_no_two_servers_share_a_directory(tmp_path):
    store = StateStore(str(tmp_path))
    with pytest.raises(StartError, match="another server uses it"):
        StateStore(str(tmp_path))
    store._close()
    StateStore(str(tmp_path))._close()
