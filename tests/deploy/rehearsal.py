"""Builds the image of deploy/Dockerfile and runs it as the manifests of deploy/ say, step by step,
without a container engine:

    python -m tests.deploy.rehearsal --extras llm

As root, with unshare, nsenter, setpriv and ip.  It installs packages, so it takes minutes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.deploy import servables
from tests.deploy.building import Builder, Image, mount
from tests.deploy.containers import Container, Running, of_compose, of_pod
from tests.e2e.harness import ROOT
from tests.waiting import eventually

DEPLOY = ROOT / "deploy"
_LOADING = 300.0  # seconds
_ALONE = "REHEARSAL_HAS_ITS_OWN_MOUNTS"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", maxsplit=1)[0])
    parser.add_argument("--extras", default="llm", help="EXTRAS of the Dockerfile")
    extras = parser.parse_args().extras
    if _ALONE not in os.environ:
        words = ["unshare", "--mount", "--propagation=private", sys.executable]
        words += ["-m", "tests.deploy.rehearsal", f"--extras={extras}"]
        os.execvpe(words[0], words, {**os.environ, _ALONE: "yes"})
    place = Path(tempfile.mkdtemp())
    mount("-t", "tmpfs", "rehearsal", place)
    try:
        image = Builder(ROOT, place, {"EXTRAS": extras}).build(DEPLOY / "Dockerfile")
        files = [one for one in (image.root / "opt/serving").rglob("*") if not one.is_symlink()]
        print(f"/opt/serving has {sum(one.stat().st_size for one in files) / 1e6:.0f} MB")
        models = place / "models"
        servables.make(image, models, set(extras.split(",")))
        for name, container in containers(image, models).items():
            print(f"\n-- {name}: {' '.join(container.command)}", flush=True)
            rehearse(container, models)
    finally:
        subprocess.run(["umount", "--recursive", place], check=True)
        place.rmdir()  # not its content: what is still mounted is not ours
    print("\nRehearsed.")


def containers(image: Image, models: Path) -> dict[str, Container]:
    """As each manifest has them."""
    base = DEPLOY / "kubernetes/base"
    deployment = yaml.safe_load((base / "deployment.yaml").read_text())
    config = models.parent / "config"
    config.mkdir()
    (generator,) = yaml.safe_load((base / "kustomization.yaml").read_text())["configMapGenerator"]
    for file in generator["files"]:
        shutil.copy(base / file, config)
    sources = {"config": config, "models": models}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return {
        "kubernetes/base": of_pod(image, deployment["spec"]["template"]["spec"], sources),
        "compose.yaml": of_compose(image, compose["services"]["serving"], models),
    }


def rehearse(container: Container, models: Path) -> None:
    """Start, ask, and end it while it answers.  AssertionError for what goes wrong."""
    with Running(container) as running, running.network():
        eventually(lambda: servables.get("/readyz")[0] == 200, _LOADING, "/readyz")
        for path in container.probes:
            assert servables.get(path)[0] == 200, path
        running.execute(container.image.healthcheck)
        check_rights(running)
        servables.ask(models)
        answer = iter(("data: [DONE]",))
        if (models / "tiny").exists():
            answer = servables.stream(900)
            next(answer)
        status = running.terminate()
        lines = [line for line in answer if line]
        assert lines[-1] == "data: [DONE]", lines[-1]
        assert status == 0, f"it ended with {status}"


def check_rights(running: Running) -> None:
    """The server is process 1, with the manifest's user and no rights."""
    lines = running.execute(["cat", "/proc/1/status"]).splitlines()
    status = dict(line.split(":", 1) for line in lines)
    assert status["Uid"].split()[0] == running.container.user.split(":")[0]
    assert (int(status["CapEff"], 16), int(status["NoNewPrivs"])) == (0, 1)
    places = "/ /etc /usr /opt/serving /models"
    attempt = f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done; true"
    written = running.execute(["sh", "-c", attempt])
    assert not written, f"it can write to {written.split()}"


if __name__ == "__main__":
    main()
