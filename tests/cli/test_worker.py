"""`mindspore-serving worker` and `status`: what is refused before anything is reached."""

import os
import socket

import pytest

from mindspore_serving import cli
from mindspore_serving.cli import status, worker
from mindspore_serving.cli.node_settings import WorkerSettings
from tests.ports import free_port


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "--join HOST:PORT is missing"),
        (["--join", "10.0.0.1"], "expected 'ip:port'"),
        (["--join", "10.0.0.1:6200"], "the master refuses machines without"),
        (["--join", "10.0.0.1:6200", "--insecure"], "where other machines could read the traffic"),
        (["--join", "127.0.0.1:6200", "--insecure", "--servables", "none"], "expected a directory"),
        (["--join", "127.0.0.1:6200", "--insecure", "--name", "a/b"], "the node's name is 'a/b'"),
        (["--join", "127.0.0.1:6200", "--insecure", "--slots", "-1"], "slots is -1"),
        (["--join", "127.0.0.1:6200", "--insecure", "--device-type", "tpu"], "device_type is"),
        (["--join", "127.0.0.1:6200", "--token-file", "none"], "the token file cannot be read"),
        (
            ["--join", "127.0.0.1:6200", "--tls-ca", "none.pem", "--tls-cert", "none.crt"],
            "cannot use none.pem, none.crt for TLS",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_named(capsys, monkeypatch, tmp_path, words, text):
    monkeypatch.delenv("MINDSPORE_SERVING_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["worker", *words]) == (1 if "cannot" in text else 2)
    assert text in capsys.readouterr().err


def test_labels_are_pairs(capsys):
    with pytest.raises(SystemExit):
        cli.main(["worker", "--labels", "zone"])
    assert "expected NAME=VALUE,NAME=VALUE" in capsys.readouterr().err


def test_a_machine_offers_a_slot_for_each_core_or_device():
    offer = worker.to_offer(WorkerSettings())
    assert (offer.name, offer.slots) == (socket.gethostname(), os.cpu_count())
    offer = worker.to_offer(WorkerSettings(device_ids=(2, 3), device_type="GPU"))
    assert (offer.slots, offer.device_type, offer.device_ids) == (2, "gpu", [2, 3])


def test_status_of_a_server_that_is_not_there_is_an_error(capsys):
    address = f"127.0.0.1:{free_port()}"
    assert cli.main(["status", "--http", address]) == 1
    assert f"nothing listens at http://{address} (connection refused)" in capsys.readouterr().err


def test_status_shows_a_worker_that_has_no_place_yet():
    row = {"node": None, "pid": None, "device": None, "state": "starting"}
    table = list(status.lines([{"name": "add", "version": 2, "workers": [row]}]))
    assert table[1].split() == ["add", "2", "-", "-", "-", "starting", "-"]
