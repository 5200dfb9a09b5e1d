"""Directory of a LoRA adapter as PEFT writes it, without the model that it was trained on.

The base model is a directory, or a model by name; it is served with the adapter.
"""

import os
import re

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.hub.resolve import name_of, resolve_prepared
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import parse_json, read_text

FILE = "adapter_config.json"
MAX_SIZE = 1 << 20  # bytes
_MODELS = ("config.json", "servable_config.py")  # a directory with one is a model by itself
_ADVICE = "serve the base model with --adapter NAME=DIRECTORY"


def find(path: str) -> str:
    """Return the adapter_config.json in the directory `path`; "" if it has a model too."""
    file = os.path.join(path, FILE)
    is_model = any(os.path.isfile(os.path.join(path, name)) for name in _MODELS)
    return file if os.path.isfile(file) and not is_model else ""


def read(path: str) -> ForeignModel:
    """Return the base model of the adapter_config.json at `path`, with the adapter.

    Raises StartError if the file does not name the base model, or that cannot be found.
    """
    config = parse_json(FILE, read_text(path, MAX_SIZE))
    base, directory = config.get("base_model_name_or_path"), os.path.dirname(path)
    if not isinstance(base, str) or not base:
        raise StartError(f"{FILE} has no base_model_name_or_path: {_ADVICE}")
    name = os.path.basename(base.rstrip("/"))
    adapter = os.path.basename(name_of(directory) or directory)
    return ForeignModel(
        "PEFT",
        FILE,
        {"alias": re.sub(r"[^A-Za-z0-9_.-]", "_", name)},
        language_path=_find_base(base, config.get("revision"), directory),
        language_options={"adapters": {adapter: directory}},
    )


def _find_base(base: str, revision: object, directory: str) -> str:
    """Return the path of the base model: a directory, or the download of what `base` names."""
    local = os.path.normpath(os.path.join(directory, os.path.expanduser(base)))
    if os.path.exists(local):
        return local
    if os.path.isabs(base):
        raise StartError(
            f"{FILE}: base_model_name_or_path is {base!r:.200}, where there is nothing; {_ADVICE}"
        )
    name = f"{base}@{revision}" if isinstance(revision, str) and revision else base
    try:
        path = resolve_prepared(name, directory)
    except ServingError as error:
        raise StartError(f"{FILE}: base_model_name_or_path is {base!r:.200}: {error}") from None
    if path == name:
        raise StartError(
            f"{FILE}: base_model_name_or_path is {base!r:.200}, which is no directory and no name "
            f"of a model; {_ADVICE}"
        )
    return path
