"""Registries of images (OCI distribution, Docker's v2): manifests, layers and their tokens.

Ollama's registry speaks the same protocol.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from mindspore_serving.errors import StartError
from mindspore_serving.hub.download import OpenAt
from mindspore_serving.hub.http import CredentialsRefused, HttpClient, parse_json

MAX_LAYERS = 1000
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_LICENCE, _TITLE = "org.opencontainers.image.licenses", "org.opencontainers.image.title"
_ADVICE = "log in with `docker login HOST`, whose config.json is read, and check the name"


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """Blob of an image: media type, hash in hex, bytes, and its file name if it has one."""

    media_type: str
    sha256: str
    size: int
    title: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Image at one version: its digest, its text as it came, and its layers in order."""

    digest: str
    text: str
    layers: tuple[ImageLayer, ...]
    config: ImageLayer | None = None  # of the image, which only Ollama's store needs
    licence: str = ""


class Repository:
    """Repository `name` of the registry at `host`; hosts of this machine speak HTTP."""

    def __init__(self, host: str, name: str, *, url: str = "") -> None:
        scheme = "http" if re.match(r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?$", host) else "https"
        self._url = f"{url or f'{scheme}://{host}'}/v2/{quote(name)}"
        self._host = host
        self._name = name
        self._client = HttpClient(_basic_of(host), advice=_ADVICE)

    def manifest(self, tag: str, what: str) -> Manifest:
        """Return the manifest of a tag or digest: of an index the one for Linux on x86-64."""
        body = self._get(tag, what)
        document = parse_json(body, self._url)
        if isinstance(document, dict) and "manifests" in document:
            tag = _platform(document["manifests"], what)
            body = self._get(tag, what)
        manifest = parse_manifest(body.decode(errors="replace"), what)
        if _DIGEST.fullmatch(tag) and tag != manifest.digest:
            raise StartError(f"{self._host} sends for {what} the manifest {manifest.digest}")
        return manifest

    def tags(self) -> list[str]:
        """Return the tags of the repository."""
        answer = self._get_json("tags/list", f"the tags of {self._name}")
        return [str(tag) for tag in answer["tags"]]

    def open_at(self, layer: ImageLayer, what: str) -> OpenAt:
        """Return the function that downloads a layer from an offset on."""
        return self._client.open_at(f"{self._url}/blobs/sha256:{layer.sha256}", what)

    def get(self, layer: ImageLayer, what: str, *, limit: int) -> bytes:
        """Return a small layer."""
        return self._client.get(f"{self._url}/blobs/sha256:{layer.sha256}", what, limit=limit)[0]

    def _get(self, tag: str, what: str) -> bytes:
        return self._get_with_token(f"manifests/{quote(tag, safe=':')}", what)

    def _get_json(self, path: str, what: str) -> Any:
        return parse_json(self._get_with_token(path, what), self._url)

    def _get_with_token(self, path: str, what: str) -> bytes:
        """Return an answer; if the registry wants a token, it is fetched first."""
        url, accept = f"{self._url}/{path}", ", ".join((*MANIFESTS, "application/json"))
        try:
            return self._client.get(url, what, accept=accept)[0]
        except CredentialsRefused as error:
            if not error.challenge.lower().startswith("bearer"):
                raise
            self._client.authorization = self._token(dict(_CHALLENGE.findall(error.challenge)))
        return self._client.get(url, what, accept=accept)[0]

    def _token(self, challenge: Mapping[str, str]) -> str:
        """Ask the service that the registry names for a token to read the repository."""
        realm = challenge.get("realm", "")
        if urlsplit(realm).scheme not in ("https", urlsplit(self._url).scheme):
            raise StartError(f"{self._host} names {realm!r} for tokens, expected an https address")
        scope = challenge.get("scope") or f"repository:{self._name}:pull"
        query = urlencode({"service": challenge.get("service", ""), "scope": scope})
        answer = self._client.get_json(f"{realm}?{query}", f"a token for {self._name}")
        token = answer.get("token") or answer.get("access_token") if isinstance(answer, dict) else 0
        if not token:
            raise StartError(f"{urlsplit(realm).netloc} gives no token for {self._name}")
        return f"Bearer {token}"


def parse_manifest(text: str, what: str) -> Manifest:
    """Return the manifest of an image.  Raises StartError for a wrong one."""
    document = parse_json(text.encode(), what)
    layers = document.get("layers") if isinstance(document, dict) else None
    if not isinstance(layers, list) or not 0 < len(layers) <= MAX_LAYERS:
        raise StartError(f"{what} has a manifest without a list of 1 to {MAX_LAYERS} layers")
    annotations = document.get("annotations")
    licence = annotations.get(_LICENCE, "") if isinstance(annotations, dict) else ""
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    config = _layer(document["config"], what) if document.get("config") else None
    return Manifest(digest, text, tuple(_layer(row, what) for row in layers), config, str(licence))


def _platform(manifests: Any, what: str) -> str:
    """Return the digest in an index of the image for this kind of machine, else of the first."""
    rows = (
        [row for row in manifests if isinstance(row, dict)] if isinstance(manifests, list) else []
    )
    images = [row for row in rows if _DIGEST.fullmatch(str(row.get("digest")))]
    if not images:
        raise StartError(f"{what} has an index without images")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
    chosen = (row for row in images if _architecture(row) == machine)
    return str(next(chosen, images[0])["digest"])


def _architecture(row: dict[str, Any]) -> Any:
    platform = row.get("platform")
    return platform.get("architecture") if isinstance(platform, dict) else None


def _layer(row: Any, what: str) -> ImageLayer:
    digest = str(row.get("digest", "")) if isinstance(row, dict) else ""
    size = row.get("size") if isinstance(row, dict) else None
    if not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise StartError(f"{what} has a layer {row!r:.200}, expected a size and a sha256 digest")
    annotations = row.get("annotations")
    title = str(annotations.get(_TITLE, "")) if isinstance(annotations, dict) else ""
    return ImageLayer(str(row.get("mediaType", "")), digest.removeprefix("sha256:"), size, title)


def _basic_of(host: str) -> str:
    """Return the header for a host from the file that `docker login` writes."""
    directory = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    path = Path(os.environ.get("REGISTRY_AUTH_FILE") or Path(directory, "config.json"))
    try:
        entries = json.loads(path.read_text()).get("auths", {})
        row = entries.get(host) or entries.get(f"https://{host}") or {}
        pair = (
            row.get("auth")
            or base64.b64encode(f"{row['username']}:{row['password']}".encode()).decode()
        )
    except (OSError, ValueError, AttributeError, KeyError):
        return ""
    return f"Basic {pair}"
