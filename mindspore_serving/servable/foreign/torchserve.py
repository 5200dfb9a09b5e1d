"""TorchServe's model archives: a .mar file, or the directory of one that is not packed.

Only the manifest and the model's configuration are read.  The handler is Python and is not run.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable.archive import Archive
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import inside, parse_json, read_text

SUFFIX = ".mar"
MANIFEST = "MAR-INF/MANIFEST.json"
MAX_SIZE = 1 << 20  # bytes of the manifest, and of the configuration
_FORMATS = {".pt": "pytorch", ".pth": "pytorch", ".pt2": "pytorch", ".onnx": "onnx"}
_NAME = re.compile(r"\w[\w.-]{0,127}")
_EAGER = (
    "the class of the model is Python code, which is not run: export the model by "
    "torch.export.save (.pt2) or torch.jit.save, or load it in a servable_config.py"
)
_OPTIONS = {  # of the configuration, by ours
    "minWorkers": "num_parallel_workers",
    "batchSize": "max_batch_size",
    "maxBatchDelay": "max_batch_delay_ms",
    "responseTimeout": "stage_timeout",
}


def find(path: str) -> str:
    """Return the archive at `path`, or the manifest in that directory; "" if there is none."""
    if path.lower().endswith(SUFFIX) and os.path.isfile(path):
        return path
    manifest = os.path.join(path, MANIFEST)
    return manifest if os.path.isfile(manifest) else ""


def read(path: str) -> ForeignModel:
    """Return the model of the archive, or of the manifest, at `path`.

    Raises StartError for an archive that cannot be read, and for a model that needs its code.
    """
    if path.lower().endswith(SUFFIX):
        with Archive(path) as archive:
            return _model(archive, is_archive=True)
    return _model(_Directory(os.path.dirname(os.path.dirname(path))), is_archive=False)


class _Directory:
    """The files of an archive that is not packed."""

    def __init__(self, root: str) -> None:
        self._root = root

    def text(self, name: str, max_size: int) -> str:
        """Return the text of a file.  Raises StartError."""
        return read_text(inside(MANIFEST, self._root, name), max_size)

    def check(self, name: str) -> None:
        """Raise StartError if there is no file `name`."""
        inside(MANIFEST, self._root, name)


def _model(files: "Archive | _Directory", *, is_archive: bool) -> ForeignModel:
    model = parse_json(MANIFEST, files.text(MANIFEST, MAX_SIZE)).get("model")
    if not isinstance(model, dict):
        raise StartError(f"{MANIFEST} has no object 'model'")
    if model.get("modelFile"):
        raise StartError(f"{MANIFEST}: modelFile is {model['modelFile']!r:.100}: {_EAGER}")
    name = str(model.get("serializedFile") or "")
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _FORMATS:
        raise StartError(
            f"{MANIFEST}: serializedFile is {name!r:.100}, expected one of {', '.join(_FORMATS)}"
        )
    files.check(name)
    options: dict[str, Any] = {}
    notes = list(_notes(model))
    if model.get("configFile"):
        notes += _add_options(options, files.text(str(model["configFile"]), MAX_SIZE))
    max_batch_size = int(options.pop("max_batch_size", 0))
    if _NAME.fullmatch(str(model.get("modelName") or "")):
        options["alias"] = str(model["modelName"])
    location = "" if is_archive else f"../{name}"
    return ForeignModel(
        "TorchServe",
        os.path.basename(MANIFEST),
        options,
        without_effect=tuple(notes),
        max_batch_size=max_batch_size,
        model=DeclaredModel(
            name,
            _FORMATS[suffix],
            (location or name,),
            member=name if is_archive else "",
        ),
    )


def _notes(model: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over what has no effect in the manifest."""
    if handler := model.get("handler"):
        yield f"handler {str(handler)[:100]} (its code is not run: requests carry tensors)"
    if model.get("requirementsFile"):
        yield "requirementsFile"


def _add_options(options: dict[str, Any], text: str) -> list[str]:
    """Add the options of a model-config.yaml; return the names without effect."""
    import yaml  # workers import this module, and their environments may lack PyYAML

    from mindspore_serving.core.yaml_text import Loader, faults

    try:
        with faults("model-config.yaml"):
            config = yaml.load(text, Loader)
    except InvalidInputs as error:
        raise StartError(str(error)) from None
    if not isinstance(config, dict):
        raise StartError("model-config.yaml is not a mapping of names to values")
    unused = []
    for name, value in config.items():
        option = _OPTIONS.get(str(name))
        if option is None:
            unused.append(str(name)[:100])
        elif type(value) is not int or value < 0:
            raise StartError(f"model-config.yaml: {name} is {value!r:.60}, expected a number >= 0")
        elif value:
            options[option] = value
    return unused
