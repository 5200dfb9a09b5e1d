"""Runs an image as a container would: in namespaces of its own, as its user, without capabilities,
with a root directory that cannot be written where the manifest says so.

What a cluster adds is left out: limits of CPU and memory, the filter of system calls, the network.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.building import Image, mount
from tests.waiting import eventually

_NEW_NETWORK = 0x40000000
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")

_BEGIN = """
set -eu
ip link set lo up
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o size=64m shm "$ROOT/dev/shm"
for place in $READ_ONLY; do mount -o remount,bind,ro "$place"; done
exec chroot "$ROOT" "$@"
"""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of this machine at `path`; None is an empty one of the container's own."""

    path: str
    source: Path | None = None
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """What is run, and how; `grace` are the seconds from SIGTERM to SIGKILL, `probes` the paths
    that are asked for on its port."""

    image: Image
    command: Sequence[str]
    user: str
    mounts: Sequence[Mount]
    grace: float
    is_read_only: bool
    probes: Sequence[str] = ()


def of_pod(image: Image, pod: dict[str, Any], sources: Mapping[str, Path]) -> Container:
    """The only container of a pod's spec; `sources` are its volumes but those that are empty."""
    (spec,) = pod["containers"]
    context, own = pod["securityContext"], spec["securityContext"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
    mounts = [
        Mount(
            one["mountPath"],
            None if one["name"] in empty else sources[one["name"]],
            one.get("readOnly", False),
        )
        for one in spec["volumeMounts"]
    ]
    pause = spec["lifecycle"]["preStop"]["sleep"]["seconds"]
    return Container(
        image,
        [*(spec.get("command") or image.entrypoint), *(spec.get("args") or image.cmd)],
        f"{context['runAsUser']}:{context['runAsGroup']}",
        mounts,
        pod["terminationGracePeriodSeconds"] - pause,
        own["readOnlyRootFilesystem"],
        [spec[name]["httpGet"]["path"] for name in _PROBES],
    )


def of_compose(image: Image, service: dict[str, Any], models: Path) -> Container:
    """A service of compose.yaml, whose variable MODELS is `models`."""
    assert service["cap_drop"] == ["ALL"]
    mounts = [Mount(path) for path in service["tmpfs"]]
    for text in service["volumes"]:
        source, path, *options = text.replace("${MODELS:-../models}", str(models)).split(":")
        is_named = not source.startswith(("/", "."))
        mounts.append(Mount(path, None if is_named else Path(source), options == ["ro"]))
    grace = float(service["stop_grace_period"].removesuffix("s"))
    command = [*image.entrypoint, *service.get("command", image.cmd)]
    return Container(image, command, image.user, mounts, grace, service["read_only"])


class Running:
    """A started container; ended with the `with` block."""

    def __init__(self, container: Container) -> None:
        self.container = container
        root = container.image.root
        self._mounted = [self._mount(one, root) for one in container.mounts]
        read_only = [root / one.path.lstrip("/") for one in container.mounts if one.is_read_only]
        if container.is_read_only:
            read_only = [root, root / "usr", root / "etc", *read_only]
        words = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        self._outside = subprocess.Popen(
            ["unshare", *words, "sh", "-c", _BEGIN, "sh", *self._inside(container.command)],
            env={**os.environ, "ROOT": str(root), "READ_ONLY": " ".join(map(str, read_only))},
        )
        children = Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children")
        self.pid = int(eventually(lambda: children.read_text().strip()))

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self._outside.poll() is None:
            self._outside.kill()
        self._outside.wait()
        for path in reversed(self._mounted):
            subprocess.run(["umount", path], check=True)

    def _mount(self, one: Mount, root: Path) -> Path:
        path = root / one.path.lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        if one.source is None:
            uid, gid = self.container.user.split(":")
            mount("-t", "tmpfs", "-o", f"uid={uid},gid={gid},mode=0770", "empty", path)
        else:
            mount("--bind", one.source, path)
        return path

    def _inside(self, command: Sequence[str]) -> list[str]:
        """As the user, with no rights and with the image's environment alone."""
        uid, gid = self.container.user.split(":")
        rights = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        env = self.container.image.env
        return [
            "/usr/bin/setpriv",
            f"--reuid={uid}",
            f"--regid={gid}",
            *rights,
            *("/usr/bin/env", "-i", f"--chdir={self.container.image.workdir}"),
            *(f"{name}={value}" for name, value in env.items()),
            *command,
        ]

    def execute(self, command: Sequence[str]) -> str:
        """What `command` prints that runs in the container; CalledProcessError if it fails."""
        words = ["nsenter", f"--target={self.pid}", "--all", f"--root=/proc/{self.pid}/root"]
        done = subprocess.run(
            [*words, *self._inside(command)], check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    @contextmanager
    def network(self) -> Iterator[None]:
        """Connections that this thread makes are made inside."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.pid}/ns/net") as theirs:
            assert libc.setns(theirs.fileno(), _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(ours.fileno(), _NEW_NETWORK) == 0

    def terminate(self) -> int:
        """SIGTERM, as `docker stop` sends it; the exit status.  TimeoutExpired if it takes longer
        than the manifest gives it."""
        os.kill(self.pid, signal.SIGTERM)
        return self._outside.wait(self.container.grace)
