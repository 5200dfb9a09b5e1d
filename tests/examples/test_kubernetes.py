"""The manifest of examples/kubernetes: its commands are ours, and its parts fit together.

What a cluster makes of it is not tested here.
"""

from typing import Any

import pytest

from mindspore_serving import cli
from mindspore_serving.cli.node_settings import WorkerSettings
from mindspore_serving.cli.settings import ServeSettings
from tests.e2e.harness import ROOT

yaml = pytest.importorskip("yaml", reason="it reads the manifest")
PARTS = list(yaml.safe_load_all((ROOT / "examples/kubernetes/serving.yaml").read_text()))


def container(name: str) -> dict[str, Any]:
    (pod,) = [p["spec"]["template"]["spec"] for p in PARTS if is_deployment(p, name)]
    (found,) = pod["containers"]
    mounts = {one["mountPath"] for one in found["volumeMounts"]}
    assert {one["name"] for one in found["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    return {**found, "mounts": mounts, "grace": pod["terminationGracePeriodSeconds"]}


def is_deployment(part: dict[str, Any], name: str) -> bool:
    return part["kind"] == "Deployment" and part["metadata"]["name"] == name


def settings(found: dict[str, Any]) -> Any:
    program, *words = [*found["command"], *found["args"]]
    assert program == "mindspore-serving"
    arguments = cli._parser().parse_args(words)
    return cli.to_settings(arguments.settings, arguments)


def test_the_server_and_the_machines_use_the_same_port_paths_and_token():
    server, machine = container("serving"), container("serving-machines")
    serve, join = settings(server), settings(machine)
    assert isinstance(serve, ServeSettings)
    assert isinstance(join, WorkerSettings)
    (service,) = [part for part in PARTS if part["kind"] == "Service"]
    ports = {one["port"] for one in service["spec"]["ports"]}
    assert join.join == f"{service['metadata']['name']}:6200"
    assert serve.worker_address == "0.0.0.0:6200"
    assert ports == {6200, serve.http_port} == {p["containerPort"] for p in server["ports"]}
    assert (list(serve.paths), join.servables) == (["/models"], "/models")
    for found in (server, machine):
        assert found["mounts"] == {"/models", "/tls"}
        secrets = [one["valueFrom"].get("secretKeyRef") for one in found["env"]]
        assert {"name": "serving-token", "key": "token"} in secrets
    assert server["grace"] > serve.shutdown_timeout
    assert machine["grace"] > join.shutdown_timeout
