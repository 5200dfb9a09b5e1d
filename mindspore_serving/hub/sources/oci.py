"""Models in images of registries (KServe's modelcars): what the image has below /models.

Layers are hostile archives: names are contained, links stay inside, sizes and counts have limits,
and nothing is ever run.
"""

import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.download import FileDownload, fetch_all, locked
from mindspore_serving.hub.http import near_names
from mindspore_serving.hub.records import read_record, recorded, remove_directory, write_record
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.registry import ImageLayer, Manifest, Repository
from mindspore_serving.hub.source import (
    CachedModel,
    Listing,
    RemoteFile,
    cache_directory,
    check_room,
)

ROOT = "models"  # directory of images that has the model
_TAG = "latest"
_MAX_ENTRIES = 100_000  # of an image
_MAX_RATIO = 50  # unpacked bytes for each byte of the layers
_FREE_BYTES = 64 << 20  # unpacked bytes that every image may have
_MAX_HEADER = 1 << 20  # bytes of long names and attributes of one entry
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DOCKER_HUB = "registry-1.docker.io"


class Oci:
    """Source of `oci://REGISTRY/REPOSITORY[:TAG]`."""

    def list_files(self, reference: Reference) -> Listing:
        """Return the layers of an image, all of which are needed."""
        repository, tag = _repository(reference), reference.revision or _TAG
        try:
            manifest = repository.manifest(tag, str(reference))
        except NotFound as error:
            raise NotFound(f"{error}{near_names(tag, repository.tags)}") from error
        files = {x.sha256: RemoteFile(x.sha256, x.size, x.sha256) for x in manifest.layers}
        return Listing(manifest.digest, tuple(files.values()), manifest.licence, is_whole=True)

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the directory of an image that is unpacked."""
        directory = _directory(reference)
        entry = read_record(directory).get("entry")
        path = directory / str(entry)
        return path if entry and path.exists() else None

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download the layers, unpack what they have below /models, and remove the layers."""
        directory = _directory(reference)
        target = directory / listing.revision.replace(":", "-")
        with locked(target, str(reference)):
            if target.is_dir():
                report(sum(file.size for file in files))
            else:
                repository = _repository(reference)
                manifest = repository.manifest(listing.revision, str(reference))
                layers = directory / "layers"
                fetch_all(_downloads(repository, manifest, layers, reference), report)
                _unpack(manifest, layers, target, str(reference))
                shutil.rmtree(layers)
            path = _entry(target)
            entry = str(path.relative_to(directory))
            write_record(directory, reference, listing, entry=entry)
        return path

    def list_cached(self) -> list[CachedModel]:
        """Return the images that are unpacked."""
        return recorded("oci")

    def remove_cached(self, reference: Reference) -> int:
        """Remove what was unpacked of an image by its tag, digest or all; return the bytes."""
        return sum(
            remove_directory(_directory(model.reference))
            for model in self.list_cached()
            if model.reference.name == reference.name
            and reference.revision in ("", model.reference.revision, model.revision)
        )


def _repository(reference: Reference) -> Repository:
    host, _, name = reference.name.partition("/")
    if not name or not ("." in host or ":" in host or host == "localhost"):
        raise InvalidInputs(
            f"{reference} names no registry, expected oci://REGISTRY/REPOSITORY:TAG"
        )
    if host in ("docker.io", "index.docker.io"):
        host, name = _DOCKER_HUB, name if "/" in name else f"library/{name}"
    return Repository(host, name)


def _directory(reference: Reference) -> Path:
    name = reference.name.replace("/", "--").replace(":", "-")
    return cache_directory("oci") / name / (reference.revision or _TAG).replace(":", "-")


def _entry(target: Path) -> Path:
    """Return the single file of an image, else its directory."""
    names = list(target.iterdir())
    return names[0] if len(names) == 1 and names[0].is_file() else target


def _downloads(
    repository: Repository, manifest: Manifest, layers: Path, reference: Reference
) -> list[FileDownload]:
    unique = {layer.sha256: layer for layer in manifest.layers}
    return [
        FileDownload(
            f"layer {layer.sha256[:12]} of {reference}",
            layers / layer.sha256,
            repository.open_at(layer, str(reference)),
            layer.size,
            layer.sha256,
        )
        for layer in unique.values()
    ]


def _unpack(manifest: Manifest, layers: Path, target: Path, name: str) -> None:
    """Unpack layers in order into a temporary directory, which is renamed when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as temporary:
        root = Path(temporary, ROOT)
        root.mkdir()
        unpacking = _Unpacking(
            root, name, sum({x.sha256: x.size for x in manifest.layers}.values())
        )
        for layer in manifest.layers:
            unpacking.run(layer, layers / layer.sha256)
        if not any(root.iterdir()):
            raise NotFound(f"{name} has no directory /{ROOT}, where KServe's modelcars have models")
        for path in root.rglob("*"):
            if path.is_symlink() and not _is_inside(path, root):
                raise StartError(f"{name} has a link out of /{ROOT}: {path.relative_to(root)}")
        root.replace(target)


def _is_inside(link: Path, root: Path) -> bool:
    """Return whether a link leads to a file of `root`, or to one that is missing there."""
    try:
        os.stat(link)
    except FileNotFoundError:
        pass
    except OSError:  # links in a circle
        return False
    return link.resolve().is_relative_to(root.resolve())


class _Header(tarfile.TarInfo):
    """Entry of a tar whose extended headers, which are read into memory, have a limit."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and self.size > _MAX_HEADER:
            raise tarfile.ReadError(f"an extended header has {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class _Unpacking:
    """Files of layers below /models, each added to those of the layers before."""

    def __init__(self, root: Path, image: str, size: int) -> None:
        self._root = root
        self._image = self._name = image
        self._remaining = size * _MAX_RATIO + _FREE_BYTES
        self._entries = 0

    def run(self, layer: ImageLayer, path: Path) -> None:
        """Unpack a tar file, which may be compressed by gzip; a titled file is copied."""
        self._name = f"layer {layer.sha256[:12]} of {self._image}"
        try:
            if "tar" not in layer.media_type and layer.title:
                self._spend(layer.size)
                shutil.copyfile(path, self._target(f"{ROOT}/{layer.title}", exist_ok=False))
                return
            mode = "r|gz" if _is_gzip(path) else "r|"
            with tarfile.open(path, mode, tarinfo=_Header) as archive:  # type: ignore[call-overload]
                for member in archive:
                    self._spend(member.size)
                    self._add(archive, member)
        except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
            raise StartError(f"{self._name} ({layer.media_type}) is no tar: {error}") from error

    def _spend(self, size: int) -> None:
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise StartError(f"{self._image} has over {_MAX_ENTRIES} entries")
        self._remaining -= size
        if size < 0 or self._remaining < 0:
            raise StartError(f"{self._image} unpacks to over {_MAX_RATIO} times its size")
        check_room(self._root, size)

    def _add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if ".." in parts or "\\" in member.name:
            raise StartError(f"{self._name} has a file {member.name!r}, which is no contained path")
        if parts[:1] != [ROOT]:
            return
        if len(parts) == 1 and not member.isdir():
            raise StartError(f"{self._name} has a /{ROOT} that is no directory")
        if member.islnk() and self._parts(member.linkname)[:1] != [ROOT]:
            raise StartError(f"{self._name} has a link out of /{ROOT}: {member.name}")
        if parts[-1].startswith(_WHITEOUT):
            self._remove(parts)
            return
        target = self._target("/".join(parts), exist_ok=member.isdir())
        if member.isdir():
            target.mkdir(exist_ok=True)
        elif member.isfile():
            source = archive.extractfile(member)
            assert source is not None
            with source, target.open("xb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
        elif member.issym():
            self._link(target, member)
        elif member.islnk():
            os.link(self._inside(self._parts(member.linkname)), target, follow_symlinks=False)
        # Devices and pipes have no place in a model.

    def _target(self, name: str, *, exist_ok: bool) -> Path:
        """Return the path of an entry; a file or link of a layer before is removed."""
        path = self._inside([part for part in PurePosixPath(name).parts if part != "/"])
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            path.unlink()
        elif path.is_dir() and not exist_ok:
            shutil.rmtree(path)
        return path

    def _inside(self, parts: Sequence[str]) -> Path:
        """Return a path below /models none of whose directories is a link."""
        path = self._root
        for part in parts[1:]:
            if path.is_symlink() or part in ("..", "."):
                raise StartError(f"{self._name} has a file behind a link: {'/'.join(parts)}")
            path = path / part
        return path

    def _link(self, target: Path, member: tarfile.TarInfo) -> None:
        """Make a link relative, and refuse one that leaves /models."""
        pointed = member.linkname
        if pointed.startswith(f"/{ROOT}/"):
            inside = self._root.joinpath(*self._parts(pointed)[1:])
            pointed = os.path.relpath(inside, target.parent)
        reached = os.path.normpath(target.parent / pointed)
        if os.path.isabs(pointed) or not Path(reached).is_relative_to(self._root):
            raise StartError(f"{self._name} has a link out of /{ROOT}: {member.name}")
        target.symlink_to(pointed)

    def _remove(self, parts: list[str]) -> None:
        """Apply a whiteout: a file of a layer before, or all of a directory, is removed."""
        directory = self._inside(parts[:-1])
        if not directory.is_dir() or directory.is_symlink():
            return
        name = parts[-1].removeprefix(_WHITEOUT)
        names = os.listdir(directory) if parts[-1] == _OPAQUE else [name]
        for path in (directory / name for name in names if name not in ("", ".", "..")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @staticmethod
    def _parts(name: str) -> list[str]:
        return [part for part in name.split("/") if part not in ("", ".")]


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"
