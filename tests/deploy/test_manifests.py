"""What deploy/ says is what the program takes: options, settings, ports, names."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mindspore_serving import cli
from mindspore_serving.cli import commands, config_file
from mindspore_serving.cli.node_settings import WorkerSettings
from mindspore_serving.cli.settings import ServeSettings
from tests.deploy.dockerfile import Ignored
from tests.deploy.manifests import (
    ASCEND,
    BASE,
    CONFIG,
    DEPLOY,
    OVERLAYS,
    UNITS,
    all_documents,
    command_lines,
    compose,
    containers,
    documents,
    find,
    instructions,
    unit,
)
from tests.e2e.harness import ROOT

COMMANDS = list(command_lines())
MACHINES = DEPLOY / "kubernetes/overlays/machines"


def settings(words: list[str]) -> Any:
    """As the program reads them; a pod's configuration file is read in a test of its own."""
    arguments = commands.parser().parse_args([word for word in words if CONFIG not in word])
    return cli.to_settings(arguments.settings, cli.parsed_values(arguments.settings, arguments))


def configured(directory: Path) -> ServeSettings:
    return ServeSettings(**{"paths": (), **config_file.read(str(directory / "server.yaml"))})


def machine() -> tuple[dict[str, Any], WorkerSettings]:
    """The pod of machines.yaml, and how it calls the program."""
    (document,) = documents(MACHINES / "machines.yaml")
    pod = document["spec"]["template"]["spec"]
    found = settings(pod["containers"][0]["args"])
    assert isinstance(found, WorkerSettings)
    return pod, found


def pod_of_server() -> dict[str, Any]:
    (document,) = documents(BASE / "deployment.yaml")
    pod: dict[str, Any] = document["spec"]["template"]["spec"]
    return pod


def extras() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    text = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", text, re.MULTILINE))


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.where)
def test_the_program_accepts_every_command_line(command):
    settings(command.words)


@pytest.mark.parametrize(
    "path", sorted(DEPLOY.rglob("server.yaml")), ids=lambda path: str(path.relative_to(DEPLOY))
)
def test_every_configuration_file_serves_the_mounted_models(path):
    found = configured(path.parent)
    assert found.host == "0.0.0.0"
    assert [one["paths"] for one in found.servables] == [("/models",)]
    assert "/models" in {
        one["mountPath"] for one in pod_of_server()["containers"][0]["volumeMounts"]
    }


@pytest.mark.parametrize("overlay", [BASE, *OVERLAYS], ids=lambda path: path.name)
def test_an_overlay_has_the_ports_of_its_configuration_file(overlay):
    found = configured(overlay if (overlay / "server.yaml").exists() else BASE)
    parts = [
        one for path in {BASE, overlay} for file in path.glob("*.yaml") for one in documents(file)
    ]
    server = [one for one in parts if one.get("metadata", {}).get("name") == "serving"]
    ports = {
        port["name"]: port["containerPort"]
        for one in server
        for group in find(one, "ports")
        for port in group
        if "containerPort" in port
    }
    offered = {
        port["targetPort"]: port["port"]
        for one in server
        if one["kind"] == "Service"
        for port in one["spec"]["ports"]
    }
    expected = {"http": found.http_port, "grpc": found.grpc_port}
    if found.worker_address:
        expected["machines"] = int(found.worker_address.rpartition(":")[2])
    assert ports == offered == expected


def test_the_image_and_compose_have_the_default_ports():
    (exposed,) = instructions("EXPOSE")
    default = settings(["serve", "/models"])
    expected = [default.http_port, default.grpc_port]
    assert list(map(int, exposed.words())) == expected
    assert compose()["serving"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in expected]
    (check,) = instructions("HEALTHCHECK")
    assert f"http://127.0.0.1:{default.http_port}/livez" in check.text


def test_containers_of_kserve_listen_where_their_probes_ask():
    found = [one for where, one in containers() if where.startswith("kserve/")]
    assert len(found) == 2
    for one in found:
        probes = {one[name]["httpGet"]["port"] for name in ("livenessProbe", "readinessProbe")}
        assert probes == {settings(one["args"]).http_port} == {one["ports"][0]["containerPort"]}
        assert settings(one["args"]).host == "0.0.0.0"


def test_grace_periods_exceed_the_shutdown_timeout():
    default = settings(["serve", "/models"]).shutdown_timeout
    pod, join = machine()
    pause = pod_of_server()["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of_server()["terminationGracePeriodSeconds"] > default + pause
    assert pod["terminationGracePeriodSeconds"] > join.shutdown_timeout
    assert seconds(compose()["serving"]["stop_grace_period"]) > default
    for path in UNITS:
        assert seconds(unit(path)["TimeoutStopSec"]) > default
        assert unit(path)["KillMode"] == "mixed"  # workers are not asked to leave beside the server


def test_the_server_and_the_machines_use_the_same_port_paths_and_token():
    serve = configured(MACHINES)
    pod, join = machine()
    (service,) = documents(BASE / "service.yaml")
    assert serve.worker_address == "0.0.0.0:6200"
    assert join.join == f"{service['metadata']['name']}:6200"
    assert join.servables == "/models"
    assert join.tls_ca == "/etc/serving-tls/ca.crt"
    (patch,) = documents(MACHINES / "server-pod.yaml")
    for one in (patch["spec"]["template"]["spec"], pod):
        (container,) = one["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert str(Path(serve.tls_cert).parent) in mounts
        secrets = [value["valueFrom"].get("secretKeyRef") for value in container["env"]]
        assert {"name": "serving-token", "key": "token"} in secrets


@pytest.mark.parametrize("where", ["base", "machines"])
def test_containers_have_no_rights_and_mount_the_volumes_of_the_pod(where):
    pod = pod_of_server() if where == "base" else machine()[0]
    (container,) = pod["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod["volumes"]
    }
    (user,) = instructions("USER")
    ids = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    assert user.text == "{}:{}".format(*ids)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_files_that_kustomizations_and_compose_name_exist():
    for path in sorted(DEPLOY.rglob("kustomization.yaml")):
        (document,) = documents(path)
        names = [*document.get("resources", []), *document.get("components", [])]
        names += [one["path"] for one in document.get("patches", []) if "path" in one]
        names += [name for one in find(document, "files") for name in one]
        missing = [name for name in names if not (path.parent / name).exists()]
        assert not missing, path
    build = compose()["serving"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_compose_mounts_files_where_prometheus_and_grafana_read_them():
    mounts = {}
    for name in ("prometheus", "grafana"):
        pairs = (text.split(":")[:2] for text in compose()[name]["volumes"])
        mounts[name] = {target: DEPLOY / source for source, target in pairs if source[0] == "."}
        assert all(path.is_dir() for path in mounts[name].values())
    (flag, *_) = compose()["prometheus"]["command"]
    file = Path(flag.removeprefix("--config.file="))
    text = (mounts["prometheus"][str(file.parent)] / file.name).read_text()
    (targets,) = find(yaml.safe_load(text), "targets")
    port = settings(compose()["serving"]["command"]).http_port
    assert targets == [f"serving:{port}"]
    provisioning = mounts["grafana"]["/etc/grafana/provisioning"]
    found = [one for path in provisioning.rglob("*.yaml") for one in documents(path)]
    (source,), (place,) = (list(find(found, name)) for name in ("url", "path"))
    assert source == "http://prometheus:9090"
    assert "9090" in compose()["prometheus"]["ports"][0]
    assert list(mounts["grafana"][place].glob("*.json"))


def test_extras_that_images_are_built_with_exist():
    text = "\n".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    found = set(re.findall(r"EXTRAS[=:](?:-|\$\{EXTRAS:-)?([a-z][a-z,]*)", text))
    assert found >= {"llm", "lite"}
    assert {name for one in found for name in one.split(",")} <= extras()


def test_the_image_for_ascend_passes_its_arguments(tmp_path):
    program = tmp_path / "mindspore-serving"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (entrypoint,), (command,) = instructions("ENTRYPOINT", ASCEND), instructions("CMD", ASCEND)
    words = [*entrypoint.words(), *command.words(), "--name=a b"]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, env=path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*command.words(), "--name=a b"]
    assert done.stderr.count("set_env.sh: No such file") == 2  # where there is no CANN
    for name in ("USER", "EXPOSE", "HEALTHCHECK"):
        assert instructions(name, ASCEND)[-1] == instructions(name)[-1]


def test_containers_for_ascend_have_its_devices_and_its_driver():
    service = compose("compose.ascend.yaml")["serving"]
    names = ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc")
    assert service["devices"] == [f"/dev/{name}" for name in names]
    build = service["build"]["dockerfile"]
    assert (DEPLOY.parent / build).samefile(DEPLOY / ASCEND)
    (patch,) = documents(DEPLOY / "kubernetes/overlays/ascend/pod.yaml")
    pod = patch["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    paths = {target: one["hostPath"]["path"] for target, one in mounts.items() if "hostPath" in one}
    assert {f"{path}:{target}:ro" for target, path in paths.items()} == set(service["volumes"])
    (document,) = documents(DEPLOY / "kubernetes/overlays/ascend/server.yaml")
    ranks = document["llm_option"]
    devices = [
        container["resources"][name]["huawei.com/Ascend910"] for name in ("requests", "limits")
    ]
    assert devices == [ranks["tensor_parallel"]] * 2


def test_files_that_the_dockerfile_copies_are_sent_to_the_builder():
    is_ignored = Ignored((ROOT / ".dockerignore").read_text())
    copied = [
        one.words()[:-1]
        for file in ("Dockerfile", ASCEND)
        for one in instructions("COPY", file)
        if "from" not in one.flags
    ]
    for source in (ROOT / name for names in copied for name in names):
        files = [source] if source.is_file() else [*source.rglob("*.py"), *source.rglob("*.pyi")]
        assert files, source
        assert not [one for one in files if is_ignored(one.relative_to(ROOT))]
    assert is_ignored(Path("tests/conftest.py"))
    assert is_ignored(Path("mindspore_serving/__pycache__/log.cpython-311.pyc"))


def test_a_secret_or_volume_that_is_mounted_is_described_in_the_docs():
    text = (ROOT / "docs/deploy.md").read_text()
    found = {name for where, one in all_documents() for name in find(one, "secretName")}
    assert {name for name in found if name not in text} == set()
