"""The log of a server: JSON lines, the access log, and what requests hold only if asked for."""

import json

import pytest

from tests.cli.commands import SERVING, Command
from tests.cli.conftest import write_words
from tests.observing.conftest import NUM_TOKENS, SECRET, Observed
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow]
KEYS = {"time", "level", "logger", "message", "request_id", "file"}


def test_each_line_is_an_object_with_time_level_place_and_request(observed: Observed) -> None:
    lines = observed.log()
    assert len(lines) > 10
    assert all(one.keys() >= KEYS for one in lines)
    (started,) = [one for one in lines if "listening on" in one["message"]]
    assert (started["level"], started["logger"]) == ("INFO", "mindspore_serving")
    assert started["file"].startswith("mindspore_serving/server/startup_report.py:")


def test_workers_write_json_lines_too(observed: Observed) -> None:
    def times() -> list[dict[str, object]]:
        text = (observed.directory / "serving_logs" / "log_words_device0_version0.log").read_text()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [one for one in lines if "WorkerRequestHandle Time Cost" in str(one["message"])]

    (first, *_) = eventually(times, what="the times of requests in the worker's log")
    assert first.keys() >= KEYS


def test_a_response_of_a_method_is_a_line(observed: Observed) -> None:
    line = observed.event("response", "rest-1")
    assert line["level"] == "INFO"
    expected = {
        "protocol": "rest",
        "verb": "POST",
        "path": "/model/words:double",
        "servable": "words",
        "method": "double",
        "code": 200,
        "bytes_sent": len(b'{"instances":[{"y":2},{"y":4}]}'),
    }
    assert {name: line[name] for name in expected} == expected
    assert line["bytes_received"] == len(json.dumps({"instances": [{"x": 1}, {"x": 2}]}))
    assert line["seconds"] > 0
    assert line["client"].startswith("127.0.0.1:")
    assert "generated_tokens" not in line


@pytest.mark.parametrize(
    ("name", "protocol", "num_answers"), [("openai-1", "openai", 2), ("tgi-1", "tgi", 1)]
)
def test_a_response_of_a_language_model_has_its_tokens(
    observed: Observed, name: str, protocol: str, num_answers: int
) -> None:
    line = observed.event("response", name)
    assert (line["protocol"], line["servable"]) == (protocol, "chatty")
    assert line["method"] == "@generate"
    assert line["generated_tokens"] == num_answers * NUM_TOKENS
    assert line["prompt_tokens"] > 0


def test_a_response_of_protocol_v2_and_a_call_of_grpc_are_lines(observed: Observed) -> None:
    line = observed.event("response", "v2-1")
    assert (line["protocol"], line["servable"], line["method"]) == ("v2", "words", "double")

    def calls() -> list[dict[str, object]]:
        return [one for one in observed.events("response") if one["protocol"] == "grpc"]

    (call,) = eventually(calls, what="the line of the call")
    assert (call["servable"], call["method"], call["code"]) == ("words", "double", "OK")
    assert call["path"] == "/mindspore.serving.proto.MSService/Predict"
    assert call["request_id"].startswith("req_")
    assert call["bytes_received"] > 0
    assert call["bytes_sent"] > 0


def test_refusals_are_lines_without_a_servable_or_the_query(observed: Observed) -> None:
    line = observed.event("response", "lost")
    assert (line["code"], line["path"]) == (404, "/nowhere")
    assert "servable" not in line
    assert SECRET not in json.dumps(line)
    assert observed.event("response", "wrong")["code"] == 400


def test_content_of_requests_is_logged_in_lines_with_a_warning(observed: Observed) -> None:
    assert any("WARNING: --log-requests" in line for line in observed.command.lines)
    assert observed.event("request", "rest-1")["body"] == json.dumps(
        {"instances": [{"x": 1}, {"x": 2}]}
    )
    bodies = [one["body"] for one in observed.events("request") if one["servable"] == "chatty"]
    assert any(SECRET in body for body in bodies)
    others = [one for one in observed.log() if one["message"] != "request"]
    assert not [one for one in others if SECRET in json.dumps(one)]


def test_without_being_asked_nothing_of_requests_is_logged(tmp_path) -> None:
    write_words(tmp_path)
    port = free_port()
    words = [*SERVING, "serve", "words", "--log-level", "debug", "--http-port", str(port)]
    with Command([*words, "--no-grpc"], tmp_path) as command:
        command.says("Ctrl-C stops")
        quiet = Observed(command, port, 0, tmp_path)
        body = {"instances": [{"left": SECRET, "right": "b"}, {"left": SECRET}]}
        for path in ("/model/words:joined", "/nowhere", f"/model/{SECRET}:m"):
            quiet.ask(path, body)
        assert quiet.ask("/model/words:joined", {"instances": [{"left": "fail"}]})
        log = tmp_path / "serving_logs" / "log_words_device0_version0.log"

        def has_times() -> bool:
            return "WorkerRequestHandle Time Cost" in log.read_text()

        quiet.ask("/model/words:double", {"instances": [{"x": 5}]})
        eventually(has_times, what="the worker's lines")
        assert SECRET not in command.text + log.read_text()
        assert "response protocol=" not in command.text


def test_the_level_can_be_changed_while_the_server_and_its_workers_run(tmp_path) -> None:
    write_words(tmp_path)
    port = free_port()
    words = [*SERVING, "serve", "words", "--http-port", str(port), "--no-grpc", "--allow-loading"]
    with Command(words, tmp_path) as command:
        command.says("Ctrl-C stops")
        running = Observed(command, port, 0, tmp_path)
        log = tmp_path / "serving_logs" / "log_words_device0_version0.log"
        assert running.ask("/v2/logging", {"log_info": True})[0] == 200

        def is_shown() -> bool:
            running.ask("/model/words:double", {"instances": [{"x": 5}]})
            return "[INFO]" in log.read_text()

        eventually(is_shown, what="a line of the worker at the new level")
