"""Checks deploy/ with the tools that others have for such files: `make lint-deploy`.

It is run by the Python of the environment that has the tools of tools.txt.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.prefix) / "bin"
EXPOSURE = 2.0  # most that `systemd-analyze security` may find, of 10


def main() -> None:
    run(BIN / "hadolint", DEPLOY / "Dockerfile", DEPLOY / "ascend.Dockerfile")
    schema = ("--builtin-schema", "vendor.compose-spec")
    run(BIN / "check-jsonschema", *schema, *sorted(DEPLOY.glob("compose*.yaml")))
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for number, (name, rendered) in enumerate(kinds(place / "kubernetes")):
            file = place / f"{number}.yaml"
            file.write_text(rendered)
            print(f"-- {name}", flush=True)
            run(BIN / "kubernetes-validate", "--strict", "--quiet", file)
        for unit in sorted((DEPLOY / "systemd").glob("*.service")):
            check_unit(unit, place)


def kinds(copy: Path) -> Iterator[tuple[str, str]]:
    """What a cluster would get, of the kinds that are its own; `copy` does not exist yet."""
    shutil.copytree(DEPLOY / "kubernetes", copy)
    for path in [copy / "base", *sorted((copy / "overlays").iterdir())]:
        yield path.name, kustomize(path)
    parts = sorted(path.parent.name for path in copy.glob("*/kustomization.yaml"))
    components = [name for name in parts if name != "base"]
    every = {"resources": ["../base"], "components": [f"../{name}" for name in components]}
    (copy / "every").mkdir()
    (copy / "every/kustomization.yaml").write_text(yaml.safe_dump(every))
    yield " and ".join(components), kustomize(copy / "every")
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
    if shutil.which("systemd-analyze") is None:
        print(f"{unit.name} is not checked: there is no systemd-analyze")
        return
    here = directory / unit.name
    here.write_text(
        unit.read_text().replace("/opt/serving/bin/mindspore-serving", shutil.which("true"))
    )
    run("systemd-analyze", "verify", "--man=no", here)
    limit = f"--threshold={EXPOSURE * 10:.0f}"
    run("systemd-analyze", "security", "--offline=true", "--no-pager", limit, here, quiet=True)


def run(*words: "str | Path", quiet: bool = False) -> None:
    print(Path(words[0]).name, *map(str, words[1:]), flush=True)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL if quiet else None)


if __name__ == "__main__":
    main()
