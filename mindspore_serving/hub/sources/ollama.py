"""Models of Ollama's registry, in Ollama's own store: `ollama list` shows what is pulled here."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.download import FileDownload, fetch_all, write_atomically
from mindspore_serving.hub.records import remove_directory
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.registry import ImageLayer, Manifest, Repository, parse_manifest
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile, cache_directory

REGISTRY = "MINDSPORE_SERVING_OLLAMA_REGISTRY"
"""Environment variable: address of the registry of names without a host."""

_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_MEDIA = "application/vnd.ollama.image."
# Layers beside the model, by the name of their file here.
_TEXTS = {
    "template": "template.txt",
    "system": "system.txt",
    "license": "LICENSE",
    "params": "params.json",
}
_MAX_TEXT = 4 << 20  # bytes of such a layer
_WEIGHTS = {"model": "model", "projector": "mmproj", "adapter": "adapter"}


class Ollama:
    """Source of `ollama://[HOST/][NAMESPACE/]NAME[:TAG]`."""

    def list_files(self, reference: Reference) -> Listing:
        """Return the layers of a tag, and remember its manifest for the download."""
        manifest = _repository(reference).manifest(_tag(reference), str(reference))
        _check(manifest, reference)
        files = [RemoteFile(f"sha256-{x.sha256}", x.size, x.sha256) for x in manifest.layers]
        unique = {file.path: file for file in files}
        self._manifest = manifest
        return Listing(manifest.digest, tuple(unique.values()), is_whole=True)

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the GGUF file of a model that this program or Ollama has pulled."""
        path = _manifest_path(reference)
        try:
            manifest = parse_manifest(path.read_text(), str(path))
            _check(manifest, reference)
        except (OSError, ValueError, StartError, NotFound):
            return None
        if not all(_blob(layer).is_file() for layer in manifest.layers):
            return None
        return _linked(reference, manifest)

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download the layers that the store lacks, then write the manifest."""
        manifest, repository = self._manifest, _repository(reference)
        layers = {layer.sha256: layer for layer in manifest.layers}
        try:
            fetch_all(
                [
                    FileDownload(
                        f"{file.path[:19]} of {reference}",
                        _blobs() / file.path,
                        repository.open_at(layers[file.sha256], str(reference)),
                        file.size,
                        file.sha256,
                    )
                    for file in files
                ],
                report,
            )
            write_atomically(_manifest_path(reference), manifest.text)
        except PermissionError as error:
            raise StartError(
                f"Ollama's store {_store()} cannot be written ({error.strerror}); set "
                "OLLAMA_MODELS to a directory of your own"
            ) from error
        return _linked(reference, manifest)

    def list_cached(self) -> list[CachedModel]:
        """Return the models of Ollama's store."""
        models = []
        for path, reference in _manifests():
            manifest = _read(path)
            if manifest is None:
                continue
            blobs = [blob for layer in manifest.layers if (blob := _blob(layer)).is_file()]
            size = sum(blob.stat().st_size for blob in blobs)
            used = max((blob.stat().st_atime for blob in blobs), default=path.stat().st_mtime)
            weights = [x for x in manifest.layers if x.media_type == f"{_MEDIA}model"]
            served = _blob(weights[0]) if weights else path
            models.append(CachedModel(reference, manifest.digest, served, size, used))
        return models

    def remove_cached(self, reference: Reference) -> int:
        """Remove a model, and the layers that no other model of the store has."""
        freed = 0
        for path, named in list(_manifests()):
            if named.name == reference.name:
                manifest = _read(path)
                known = ("", named.revision, manifest.digest if manifest else "")
                if manifest and reference.revision in known:
                    freed += _remove(path, manifest)
        return freed


def _read(path: Path) -> Manifest | None:
    """Return a manifest of the store; None if it is none."""
    try:
        return parse_manifest(path.read_text(), str(path))
    except (OSError, ValueError, StartError):
        return None


def _remove(path: Path, manifest: Manifest) -> int:
    path.unlink()
    remaining = "".join(other.read_text(errors="replace") for other, _ in _manifests())
    freed = remove_directory(_links(manifest))
    for layer in manifest.layers:
        blob = _blob(layer)
        if layer.sha256 not in remaining and blob.is_file():
            freed += blob.stat().st_size
            blob.unlink()
    return freed


def _split(reference: Reference) -> tuple[str, str, str]:
    """Return host, namespace and name, as Ollama completes them."""
    *before, name = reference.name.split("/")
    if len(before) > 2 or any(part in ("", ".", "..") for part in (*before, name)):
        raise InvalidInputs(f"{reference} has too many '/', expected [HOST/][NAMESPACE/]NAME[:TAG]")
    namespace = before.pop() if before else _NAMESPACE
    return before.pop() if before else _HOST, namespace, name


def _tag(reference: Reference) -> str:
    return reference.revision or _TAG


def _repository(reference: Reference) -> Repository:
    host, namespace, name = _split(reference)
    url = os.environ.get(REGISTRY, "").rstrip("/") if host == _HOST else ""
    return Repository(host, f"{namespace}/{name}", url=url)


def _store() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")


def _blobs() -> Path:
    return _store() / "blobs"


def _blob(layer: ImageLayer) -> Path:
    return _blobs() / f"sha256-{layer.sha256}"


def _manifest_path(reference: Reference) -> Path:
    return _store().joinpath("manifests", *_split(reference), _tag(reference))


def _manifests() -> Iterator[tuple[Path, Reference]]:
    """Iterate over the manifests of the store, with the shortest name of each."""
    root = _store() / "manifests"
    for path in sorted(root.glob("*/*/*/*")):
        host, namespace, name, tag = path.relative_to(root).parts
        if path.is_file() and not tag.startswith("."):
            prefix = "" if host == _HOST else f"{host}/"
            prefix += "" if not prefix and namespace == _NAMESPACE else f"{namespace}/"
            yield path, Reference("ollama", f"{prefix}{name}", tag)


def _check(manifest: Manifest, reference: Reference) -> None:
    """Raise NotFound for a model without a GGUF file: newer ones of Ollama are split in tensors."""
    kinds = [layer.media_type.removeprefix(_MEDIA) for layer in manifest.layers]
    if kinds.count("model") != 1:
        shown = ", ".join(sorted(set(kinds)))
        raise NotFound(f"{reference} has {kinds.count('model')} GGUF files, expected 1: {shown}")


def _links(manifest: Manifest) -> Path:
    return cache_directory("ollama") / manifest.digest.replace(":", "-")


def _linked(reference: Reference, manifest: Manifest) -> Path:
    """Return a link with the ending .gguf to the model's blob, with its other layers beside it."""
    directory = _links(manifest)
    directory.mkdir(parents=True, exist_ok=True)
    for layer in manifest.layers:
        kind, blob = layer.media_type.removeprefix(_MEDIA), _blob(layer)
        if kind in _WEIGHTS:
            _link(directory / f"{_WEIGHTS[kind]}.gguf", blob)
        elif kind in _TEXTS and layer.size <= _MAX_TEXT:
            _link(directory / _TEXTS[kind], blob)
    return directory / "model.gguf"


def _link(path: Path, blob: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(blob.absolute())
    temporary.replace(path)
