"""Names by which clients of Ollama's protocol call models, and what they may download."""

import re

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.reference import Reference, parse_reference
from mindspore_serving.hub.sources import SOURCES

LATEST = ":latest"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:/@-]{0,255}")
_HUGGING_FACE = ("hf.co/", "huggingface.co/")


def short_name(name: str) -> str:
    """Return a model's name as it is kept: without the tag that all models have."""
    return name.removesuffix(LATEST)


def check_name(name: str) -> None:
    """Raise InvalidInputs for a name that no model can have."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidInputs(
            f"{name!r:.300} is no name of a model, expected 1 to 256 letters, digits, '.', '_', "
            "'-', ':', '/' and '@'"
        )


def to_reference(name: str) -> Reference:
    """Return what a client of Ollama means by `name`: its registry, unless it names another source.

    Raises InvalidInputs for a malformed name.
    """
    check_name(name)
    text = short_name(name)
    host = next((host for host in _HUGGING_FACE if text.startswith(host)), "")
    if host:
        text = f"hf://{text.removeprefix(host)}"
    elif "://" not in text:
        text = f"ollama://{text}"
    reference = parse_reference(text)
    if reference is None:
        raise InvalidInputs(f"{name!r} names no source of models")
    return reference


def is_within(reference: Reference, prefix: str) -> bool:
    """Return whether `prefix`, as hf://Qwen/, allows a download.

    A prefix ends at a boundary of names. That of a source alone does not allow the names of another
    host, as ollama://registry.example.org/library/model.
    """
    text = str(reference)
    ends = ("",) if prefix.endswith("/") else ("/", ":", "@")
    if text != prefix and not any(text.startswith(prefix + end) for end in ends):
        return False
    is_tagged = SOURCES[reference.scheme].form == "tagged"
    return not (is_tagged and prefix == f"{reference.scheme}://" and _has_host(reference.name))


def _has_host(name: str) -> bool:
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
