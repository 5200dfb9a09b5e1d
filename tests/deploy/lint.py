"""Checks deploy/ with the tools that others have for such files: `make lint-deploy`.

It is run by the Python of the environment that has the tools of tools.txt.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
BIN = Path(sys.prefix) / "bin"
EXPOSURE = 2.0  # most that `systemd-analyze security` may find, of 10


def main() -> None:
    run(BIN / "hadolint", DEPLOY / "Dockerfile")
    schema = ("--builtin-schema", "vendor.compose-spec")
    run(BIN / "check-jsonschema", *schema, DEPLOY / "compose.yaml")
    with tempfile.TemporaryDirectory(dir=KUBERNETES) as directory:
        for number, (name, rendered) in enumerate(kinds(Path(directory))):
            file = Path(directory, f"{number}.yaml")
            file.write_text(rendered)
            print(f"-- {name}", flush=True)
            run(BIN / "kubernetes-validate", "--strict", "--quiet", file)
        for unit in sorted((DEPLOY / "systemd").glob("*.service")):
            check_unit(unit, Path(directory))


def kinds(directory: Path) -> Iterator[tuple[str, str]]:
    """What a cluster would get, of the kinds that are its own."""
    for path in [KUBERNETES / "base", *sorted((KUBERNETES / "overlays").iterdir())]:
        yield path.name, kustomize(path)
    parts = {path.parent for path in KUBERNETES.glob("*/kustomization.yaml")}
    components = sorted(path.name for path in parts - {KUBERNETES / "base"})
    together = {"resources": ["../base"], "components": [f"../{name}" for name in components]}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(together))
    yield " and ".join(components), kustomize(directory)
    for path in sorted((DEPLOY / "kserve").glob("*.yaml")):
        for runtime in yaml.safe_load_all(path.read_text()):
            if runtime["kind"] == "ClusterServingRuntime":
                yield str(path.relative_to(DEPLOY)), yaml.safe_dump(to_pod(runtime))


def kustomize(path: Path) -> str:
    rendered = subprocess.run(
        [BIN / "kubectl", "kustomize", path], check=True, stdout=subprocess.PIPE, text=True
    )
    known = [one for one in yaml.safe_load_all(rendered.stdout) if one["kind"] != "ServiceMonitor"]
    return yaml.safe_dump_all(known)


def to_pod(runtime: dict[str, Any]) -> dict[str, Any]:
    """The pod that KServe makes of a runtime, as its own kinds have no schema here."""
    containers = {"containers": runtime["spec"]["containers"]}
    metadata = {"name": runtime["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": containers}


def check_unit(unit: Path, directory: Path) -> None:
    """With a program that is there, as systemd looks for it."""
    if which("systemd-analyze") is None:
        print(f"{unit.name} is not checked: there is no systemd-analyze")
        return
    here = directory / unit.name
    here.write_text(unit.read_text().replace("/opt/serving/bin/mindspore-serving", which("true")))
    run("systemd-analyze", "verify", "--man=no", here)
    limit = f"--threshold={EXPOSURE * 10:.0f}"
    run("systemd-analyze", "security", "--offline=true", "--no-pager", limit, here, quiet=True)


def run(*words: "str | Path", quiet: bool = False) -> None:
    print(Path(words[0]).name, *map(str, words[1:]), flush=True)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL if quiet else None)


if __name__ == "__main__":
    main()
