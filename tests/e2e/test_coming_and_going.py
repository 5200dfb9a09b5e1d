"""Servables that are loaded, replaced and unloaded while clients call them."""

import json
import os
import re
import shutil
import threading

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from mindspore_serving import cli, server
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import Calls, config, row_of, serving, write_servable
from tests.ports import free_port
from tests.waiting import eventually

READY = "Ctrl-C stops"
WHO = """
def number(x):
    return NUMBER
@register.register_method(output_names=["n"])
def who(x):
    return register.add_stage(number, x, outputs_count=1)
"""


def write(directory, name, number, versions=()):
    write_servable(directory, name, WHO.replace("NUMBER", str(number)), versions=versions)


def ask(calls, name):
    """What the servable answers, or the error."""
    answer = calls.post(name, "who", [{"x": 0}])
    return answer["instances"][0]["n"] if "instances" in answer else answer["error_msg"]


# --- by name, in a script -----------------------------------------------------------------------


def test_a_script_loads_and_unloads_servables(serve, tmp_path):
    calls = serve(WHO.replace("NUMBER", "1"))
    write(tmp_path, "second", 2)
    server.load_servable(config(tmp_path, "second"))
    assert [ask(calls, name) for name in ("toy", "second")] == [1, 2]
    server.unload_servable("toy")
    assert "servable is not available" in ask(calls, "toy")
    assert ask(calls, "second") == 2
    server.load_servable("toy")
    assert ask(calls, "toy") == 1


def test_servables_load_on_demand_after_the_script_has_ended(run_script, tmp_path):
    write(tmp_path, "toy", 1)
    calls = Calls("", free_port())
    script = run_script(
        "from mindspore_serving import server\n"
        f"server.start_servables(server.ServableStartConfig({str(tmp_path)!r}, 'toy', 0))\n"
        f"server.start_restful_server('127.0.0.1:{calls.http}', allow_loading=True)\n"
        "import threading\n"
        "main = threading.main_thread()\n"
        "def say():\n"
        "    main.join()\n"
        "    print('the script has ended', flush=True)\n"
        "threading.Thread(target=say, daemon=True).start()\n"
    )
    script.says("the script has ended")
    write(tmp_path, "toy", 22)
    status, body = calls.http_call("POST", "/v2/repository/models/toy/load", b"{}")
    assert (status, body) == (200, b"")
    assert ask(calls, "toy") == 22


def test_changed_code_is_loaded_by_name(serve, tmp_path):
    calls = serve(WHO.replace("NUMBER", "1"))
    write(tmp_path, "toy", 22)
    assert ask(calls, "toy") == 1
    server.load_servable("toy")
    assert ask(calls, "toy") == 22


def test_code_that_cannot_be_loaded_changes_nothing(serve, tmp_path):
    calls = serve(WHO.replace("NUMBER", "1"))
    write_servable(tmp_path, "toy", "raise OSError('no disk')")
    with pytest.raises(RuntimeError, match="no disk"):
        server.load_servable("toy")
    assert ask(calls, "toy") == 1


def test_names_that_are_not_there_are_errors(serve):
    serve(WHO.replace("NUMBER", "1"))
    with pytest.raises(RuntimeError, match="no servable 'other' to be loaded"):
        server.load_servable("other")
    with pytest.raises(RuntimeError, match="'other' is not loaded"):
        server.unload_servable("other")
    with pytest.raises(RuntimeError, match="Parameter 'servable' should be"):
        server.load_servable("../toy")


def test_no_request_fails_while_servables_come_and_go(serve, tmp_path):
    """SOAK=1: 51 changes under the load of 64 connections."""
    num_rounds, num_clients, pause = (17, 64, 0.0) if os.environ.get("SOAK") else (2, 8, 0.02)
    calls = serve(WHO.replace("NUMBER", "1"))
    write(tmp_path, "other", 2)
    failures, is_over = [], threading.Event()

    def call():
        client = calls.client("toy", "who")
        while not is_over.wait(pause):
            (answer,) = client.infer([{"x": 0}])
            if "error" in answer:
                failures.append(answer)

    threads = [threading.Thread(target=call) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(num_rounds):
            server.load_servable("toy", reload=True)
            server.load_servable(config(tmp_path, "other"))
            server.unload_servable("other")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []


# --- as files change, on the command line -------------------------------------------------------


def serve_directory(directory, *options):
    """`mindspore-serving serve` of what is in `directory`, and how to call it."""
    calls = Calls("", free_port())
    words = ["serve", str(directory), "--http-port", str(calls.http), "--no-grpc", *options]
    return Command([*SERVING, *words], directory), calls


def test_servables_are_followed_as_they_come_change_and_go(tmp_path):
    repository = tmp_path / "models"
    repository.mkdir()
    write(repository, "first", 1)
    command, calls = serve_directory(repository, "--poll", "0.05")
    with command:
        command.says(READY)
        assert ask(calls, "first") == 1
        write(tmp_path, "second", 2)
        (tmp_path / "second").rename(repository / "second")
        eventually(lambda: ask(calls, "second") == 2)
        write(tmp_path, "first", 11)
        (tmp_path / "first" / "servable_config.py").rename(
            repository / "first" / "servable_config.py"
        )
        eventually(lambda: ask(calls, "first") == 11)
        shutil.rmtree(repository / "second")
        eventually(lambda: "not available" in str(ask(calls, "second")))
        assert ask(calls, "first") == 11


def test_versions_are_served_side_by_side_by_policy(tmp_path):
    write(tmp_path, "who", 'int(__import__("os").getpid())', versions=(1, 2, 3))
    command, calls = serve_directory(tmp_path, "--versions", "latest:2")
    with command:
        command.says(READY)
        answers = {
            version: calls.http_call(
                "POST", f"/model/who/version/{version}:who", '{"instances": [{"x": 0}]}'
            )[1]
            for version in (1, 2, 3)
        }
    assert b"not available" in answers[1]
    assert b'"n"' in answers[2]
    assert b'"n"' in answers[3]
    assert answers[2] != answers[3]


# --- by clients ---------------------------------------------------------------------------------


def test_the_command_line_and_clients_of_protocol_v2_load_and_unload(tmp_path, capsys):
    write(tmp_path, "first", 1)
    write(tmp_path, "second", 2)
    command, calls = serve_directory(tmp_path, "--allow-loading")
    where = f"--http=127.0.0.1:{calls.http}"
    with command:
        command.says(READY)

        def run_ours(*words):
            assert cli.main([*words, where]) == 0
            return capsys.readouterr().out

        assert run_ours("unload", "first") == "first is unloaded\n"
        assert "not available" in ask(calls, "first")
        assert re.search(r"first +1? *-? *UNAVAILABLE +it is not loaded", run_ours("models"))
        client = httpclient.InferenceServerClient(f"127.0.0.1:{calls.http}")
        client.load_model("first")
        assert ask(calls, "first") == 1
        assert client.is_model_ready("first.who")
        write(tmp_path, "first", 11)
        assert run_ours("load", "first") == "first is loaded\n"
        assert ask(calls, "first") == 11
        states = {row["name"]: row["state"] for row in client.get_model_repository_index()}
        assert set(states.values()) == {"READY"}
        with pytest.raises(InferenceServerException, match="no servable 'third' to be loaded"):
            client.load_model("third")


def load_by_http(calls, name, **parameters):
    """What is wrong, if something is."""
    body = json.dumps({"parameters": parameters})
    answer = calls.http_call("POST", f"/v2/repository/models/{name}/load", body)[1]
    return json.loads(answer)["error"] if answer else ""


def load_by_grpc(calls, name, config=None, **files):
    with grpcclient.InferenceServerClient(calls.grpc) as client:
        try:
            client.load_model(name, config=config, files=files)
        except InferenceServerException as error:
            return error.message()
    return ""


FILE = {load_by_http: "eA==", load_by_grpc: b"x"}


def test_a_client_loads_with_settings_of_its_own_until_the_next_load(tmp_path):
    write_servable(tmp_path, "toy", WHO.replace("NUMBER", "1"))
    with serving(tmp_path, config(tmp_path, "toy"), allow_loading=True) as calls:
        for load in (load_by_http, load_by_grpc):
            check_settings_of(load, calls)


def check_settings_of(load, calls):
    def num_workers():
        return row_of(calls, "toy")["num_workers"]

    assert load(calls, "toy", config=json.dumps({"instance_group": [{"count": 2}]})) == ""
    eventually(lambda: num_workers() == 2)
    problem = load(calls, "toy", config=json.dumps({"optimization": {}}))
    assert "'optimization' cannot be changed" in problem
    problem = load(calls, "toy", config="{}", **{"file:1/model.onnx": FILE[load]})
    assert "clients cannot send files" in problem
    assert num_workers() == 2
    assert load(calls, "toy") == ""
    eventually(lambda: num_workers() == 1)
    assert ask(calls, "toy") == 1


def test_clients_may_not_load_and_unload_unless_they_are_allowed(serve, capsys):
    calls = serve(WHO.replace("NUMBER", "1"))
    client = httpclient.InferenceServerClient(f"127.0.0.1:{calls.http}")
    for act in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="--allow-loading"):
            act("toy")
    assert ask(calls, "toy") == 1
    capsys.readouterr()
    assert cli.main(["unload", f"127.0.0.1:{calls.http}", "toy"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "--allow-loading" in printed


# --- a limit of how many are loaded -------------------------------------------------------------


def loaded(calls):
    rows = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return {row["name"] for row in rows if row["num_workers"]}


def test_the_least_recently_used_servable_is_unloaded_and_reloaded(tmp_path):
    for number, name in enumerate(("one", "two", "three"), 1):
        write(tmp_path, name, number)
    command, calls = serve_directory(tmp_path, "--max-loaded", "2")
    with command:
        command.says(READY)
        assert len(loaded(calls)) == 2
        for number, name in ((1, "one"), (2, "two"), (3, "three"), (2, "two"), (1, "one")):
            assert ask(calls, name) == number
        eventually(lambda: loaded(calls) == {"two", "one"})
        assert calls.http_call("GET", "/readyz")[0] == 200
