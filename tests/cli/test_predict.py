"""`mindspore-serving predict` over both protocols: as a process, and called in this one."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, call, run
from tests.cli.conftest import served_from
from tests.e2e.harness import config, serving, write_servable
from tests.ports import free_port

pytestmark = pytest.mark.e2e

SUMS = """
from mindspore_serving.server import register

def summed(x, total):
    return total + x, total + x

@register.register_method(output_names=["y"])
def add(x):
    total = register.declare_state("total", 1, "int64")
    y, new = register.add_stage(summed, x, total, outputs_count=2)
    total.update(new)
    return y
"""


@pytest.fixture(params=["REST", "gRPC", "gRPC without a scheme"])
def where(request, served) -> str:
    return {
        "REST": served.url,
        "gRPC": f"grpc://{served.address}",
        "gRPC without a scheme": served.address,
    }[request.param]


def test_both_protocols_print_the_same_json(served, where, tmp_path: Path) -> None:
    instances = [{"x": [[1.5, 2.5]]}, {"x": 7}, {"x": {"b64": "AgA=", "type": "int16"}}]
    done = run([*SERVING, "predict", where, "words", "double", json.dumps(instances)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"instances": [{"y": [[3.0, 5.0]]}, {"y": 14}, {"y": 4}]}


@pytest.mark.parametrize("missing", ["NaN", "null", "Infinity"])
def test_missing_values_are_read_and_printed_as_null(where, tmp_path: Path, missing: str) -> None:
    words = ["predict", where, "words", "double", f'{{"x": [1.5, {missing}]}}']
    done = call(words, tmp_path)
    assert (done.returncode, done.stdout) == (0, '{"instances": [{"y": [3.0, null]}]}\n')


def test_a_failed_instance_is_status_1_and_the_rest_is_printed(where, tmp_path: Path) -> None:
    instances = [{"left": "a", "right": "b"}, {"left": "fail", "right": "b"}]
    words = ["predict", where, "words", "joined", json.dumps(instances)]
    done = call(words, tmp_path)
    good, bad = json.loads(done.stdout)["instances"]
    assert done.returncode == 1
    assert good == {"text": "a b"}
    assert "asked to fail" in bad["error_msg"]


def test_a_failed_request_is_status_1(where, tmp_path: Path) -> None:
    done = call(["predict", where, "words", "no_such", '{"x": 1}'], tmp_path)
    assert done.returncode == 1
    assert "method is not available" in json.loads(done.stdout)["error_msg"]


def test_a_version_can_be_asked_for(where, tmp_path: Path) -> None:
    words = ["predict", where, "words", "double", '{"x": 1}', "--servable-version"]
    assert json.loads(call([*words, "1"], tmp_path).stdout) == {"instances": [{"y": 2}]}
    assert "servable is not available" in call([*words, "3"], tmp_path).stdout


def test_requests_can_be_of_a_sequence(tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "servable_config.py").write_text(SUMS)
    with served_from(tmp_path, "sums") as server:
        for where in (server.url, server.address):

            def add(inputs: str, *options: str, where: str = where) -> dict[str, object]:
                words = ["predict", where, "sums", "add", inputs, "--sequence", "meter", *options]
                return json.loads(call(words, tmp_path).stdout)

            assert add('{"x": 1}', "--start") == {"instances": [{"y": [1]}]}
            assert add('[{"x": 2}, {"x": 3}]') == {"instances": [{"y": [3]}, {"y": [6]}]}
            assert add("[]", "--end") == {"instances": []}
            assert "sequence 'meter' has ended" in str(add('{"x": 1}'))


def test_the_start_of_no_sequence_is_refused(tmp_path: Path) -> None:
    done = call(["predict", "127.0.0.1:1", "sums", "add", '{"x": 1}', "--start"], tmp_path)
    assert "--start and --end need the id of a sequence: --sequence ID" in done.stderr


def test_the_inputs_can_come_from_the_standard_input(served, tmp_path: Path) -> None:
    words = [*SERVING, "predict", served.url, "words", "double", "-"]
    assert json.loads(run(words, tmp_path, '{"x": 4}').stdout) == {"instances": [{"y": 8}]}


@pytest.mark.parametrize(("inputs", "words"), [("{x: 1}", "not JSON"), ("[1]", "array of such")])
def test_inputs_that_are_no_instances_are_told(served, tmp_path, inputs, words) -> None:
    done = call(["predict", served.url, "words", "double", inputs], tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    port = free_port()
    for where in (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"):
        done = call(["predict", where, "words", "double", '{"x": 1}'], tmp_path)
        assert done.returncode == 1
        assert "refused" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


def test_a_key_is_sent_by_either_protocol(tmp_path: Path) -> None:
    source = """
@register.register_method(output_names=["y"])
def same(y):
    return y
"""
    write_servable(tmp_path, "toy", source)
    with serving(tmp_path, config(tmp_path, "toy"), api_keys=["the-right-key"]) as calls:
        for place in (f"http://127.0.0.1:{calls.http}", calls.grpc):
            words = ["predict", place, "toy", "same", '{"y": 1}']
            assert call(words, tmp_path).returncode == 1
            done = call([*words, "--api-key", "the-right-key"], tmp_path)
            assert json.loads(done.stdout) == {"instances": [{"y": 1}]}


def test_the_body_of_a_rest_request_is_not_inputs(where, tmp_path: Path) -> None:
    done = call(["predict", where, "words", "double", '{"instances": [{"x": 1}]}'], tmp_path)
    assert done.returncode == 2
    assert 'leave out {"instances": ...}' in done.stderr


def test_the_port_of_the_other_protocol_is_told(served, tmp_path: Path) -> None:
    inputs = ["words", "double", '{"x": 1}']
    by_http = call(["predict", f"http://{served.address}", *inputs], tmp_path)
    assert (by_http.returncode, by_http.stdout) == (1, "")
    assert f"{served.address} is a gRPC port" in by_http.stderr
    assert f"grpc://{served.address}" in by_http.stderr


def test_the_port_of_http_answers_grpc_too(served, tmp_path: Path) -> None:
    inputs = ["words", "double", '{"x": 1}']
    by_grpc = call(["predict", served.url.removeprefix("http://"), *inputs], tmp_path)
    assert (by_grpc.returncode, by_grpc.stderr) == (0, "")


def test_a_server_without_answer_is_an_error_of_a_line(tmp_path: Path) -> None:
    done = call(["predict", f"127.0.0.1:{free_port()}", "a", "b", "{}"], tmp_path)
    assert "does the server run, and is this its gRPC port?" in json.loads(done.stdout)["error_msg"]
    done = call(["predict", "http", "a", "b", "{}"], tmp_path)
    assert "expected 'ip:port' of the server's gRPC port" in done.stderr
