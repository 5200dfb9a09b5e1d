"""Names of models that are no paths: hf://ORG/NAME@REVISION:FILE, ORG/NAME and others."""

import os
import re
from dataclasses import dataclass

from mindspore_serving.errors import InvalidInputs, did_you_mean
from mindspore_serving.hub.sources import SOURCES

ANY = ""  # scheme of a bare ORG/NAME: the sources are asked in order

_OF_SERVERS = ("http", "grpc")  # schemes of servers that run
_HOSTS = ("hf.co/", "huggingface.co/")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_NAME = rf"{_WORD}(?:/{_WORD})?"
_REVISION = r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,254}"
_FILE = r"[A-Za-z0-9_][^\0-\x1f\\:@]{0,254}"
_REPOSITORY = re.compile(rf"({_NAME})(?:@({_REVISION}))?(?::({_FILE}))?")
_BARE = re.compile(rf"({_WORD}/{_WORD})(?:@({_REVISION}))?(?::({_FILE}))?")
_TAGGED = re.compile(
    r"([^\s@/][^\s@]*?)(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@([a-z0-9]+:\w+))?"
)
_PAGE = re.compile(  # of a repository, as a browser's address line has it
    rf"(?:huggingface\.co|hf\.co)/({_WORD}/{_WORD})/?"
    rf"(?:(?:tree|blob|resolve)/([^/]+)/?([^?#]*))?(?:[?#].*)?"
)
# Endings of model files: a path with one of them is a path, though it looks like ORG/NAME.
_FILE_ENDINGS = re.compile(
    r"\.(mindir|ms|ckpt|onnx|pt|pth|pt2|safetensors|gguf|bin|xml|pdmodel|pb|tflite|json|ubj|txt|"
    r"skops|pkl|joblib|cbm|pmml|py|ya?ml|zip|tar|gz|mar)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """Name of a model that is not a path: scheme, name, revision and file."""

    scheme: str  # a key of SOURCES; ANY for a bare ORG/NAME
    name: str  # ORG/NAME, namespace/model, host/path, bucket/prefix, registry/repository
    revision: str = ""  # branch, tag or commit; "" for the source's default
    file: str = ""  # a file, or a quantisation such as Q8_0; "" for what the format needs

    @property
    def title(self) -> str:
        """Name of the servable: the last part of the model's name, as a name of servables."""
        last = self.name.rstrip("/").rpartition("/")[2].partition("?")[0]
        if self.scheme in ("https", "http"):
            last = os.path.splitext(last)[0]
        return re.sub(r"[^A-Za-z0-9_.-]", "-", last)[:128].lstrip(".")

    def __str__(self) -> str:
        prefix = f"{self.scheme}://" if self.scheme else ""
        if self.scheme and SOURCES[self.scheme].form == "tagged":
            return prefix + self.name + (self.revision and _tag_of(self.revision))
        revision, file = self.revision and f"@{self.revision}", self.file and f":{self.file}"
        return f"{prefix}{self.name}{revision}{file}"


def parse_reference(text: str, base: str = "") -> Reference | None:
    """Return what `text` names, None if it is a local path, relative to `base`.

    A path that exists is a path, and so is one in a directory that exists, or with the ending of a
    model file.  Raises InvalidInputs for an unknown scheme or a malformed name.
    """
    match = _SCHEME.fullmatch(text)
    if match and match[1].lower() in _OF_SERVERS and not is_model_file(match[2]):
        return None
    if match:
        return _with_scheme(match[1].lower(), match[2], text)
    if text.startswith(_HOSTS) and not os.path.lexists(os.path.join(base, text)):
        return _with_scheme("hf", text.partition("/")[2], text)  # as Ollama writes it
    bare = _BARE.fullmatch(text)
    path = os.path.join(base, text)
    if not bare or os.path.lexists(path) or os.path.isdir(os.path.dirname(path)):
        return None
    if _FILE_ENDINGS.fullmatch(os.path.splitext(bare[1])[1]):
        return None
    return Reference(ANY, bare[1], bare[2] or "", bare[3] or "")


def is_model_file(address: str) -> bool:
    """Return whether an address ends as a model file does: others are those of servers."""
    path = re.split(r"[?#]", address)[0]
    return bool(_FILE_ENDINGS.fullmatch(os.path.splitext(path)[1]))


def located(text: str, base: str) -> str:
    """Return `text` as a path relative to `base`, unchanged if it is a name."""
    return text if parse_reference(text, base) else os.path.join(base, text)


def _with_scheme(scheme: str, rest: str, text: str) -> Reference:
    page = _PAGE.fullmatch(rest) if scheme == "https" else None
    if page:
        return Reference("hf", page[1], page[2] or "", page[3] or "")
    row = SOURCES.get(scheme)
    if row is None:
        known = ", ".join(f"{name}://" for name in SOURCES)
        raise InvalidInputs(
            f"{text!r} has the scheme '{scheme}', expected a path, ORG/NAME or one of {known}"
            f"{did_you_mean(scheme, SOURCES)}"
        )
    if row.form == "url":
        if rest[:1] in ("", "/") or re.search(r"[\0-\x20\x7f]", rest) or "/../" in f"/{rest}/":
            raise InvalidInputs(
                f"{text!r} is no address, expected {row.meaning.partition(': ')[0]}"
            )
        return Reference(scheme, rest)
    pattern = _REPOSITORY if row.form == "repository" else _TAGGED
    match = pattern.fullmatch(rest)
    if not match or ".." in rest.split("/"):
        written = "ORG/NAME[@REVISION][:FILE]" if row.form == "repository" else "NAME[:TAG]"
        raise InvalidInputs(f"{text!r} is no name of a model, expected {scheme}://{written}")
    if row.form == "tagged":
        return Reference(scheme, match[1], match[3] or match[2] or "")
    return Reference(scheme, match[1], match[2] or "", match[3] or "")


def _tag_of(revision: str) -> str:
    return f"@{revision}" if ":" in revision else f":{revision}"
