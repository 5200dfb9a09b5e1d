"""Choice of the files to download from a list of names and sizes; reads no file.

Weights come in one format: safetensors before others.  Code is never chosen.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mindspore_serving.errors import InvalidInputs, NotFound, did_you_mean
from mindspore_serving.hub.source import RemoteFile

DEFAULT_QUANTISATION = "Q4_K_M"
# Quantisations of GGUF to take if the default is missing, best first.
_QUANTISATIONS = (DEFAULT_QUANTISATION, "Q4_K_S", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "MXFP4")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
# Endings of files that are served by their own paths.
_GRAPHS = (
    *(".gguf", ".onnx", ".mindir", ".xml", ".tflite", ".pt2", ".pdmodel", ".skops", ".ubj"),
    *(".cbm", ".pmml", ".ms", ".torchscript"),
)
_MAX_SETTINGS = 200 * 10**6  # bytes; a larger text is data
_SHOWN = 12  # names in an error
_HALF = re.compile(r"f16\b", re.IGNORECASE)  # of a vision tower
# Settings, tokenizers, templates and the card, beside the weights.
_SETTINGS = re.compile(
    r"[^/]+\.(json|jinja|model|spm|tiktoken|ya?ml|txt)|README\.md|LICEN[CS]E[^/]*"
    r"|(additional_chat_templates|chat_templates)/[^/]+\.jinja|\d+_\w+/(config\.json|vocab\.txt)"
    r"|\d+_\w+/[^/]+\.safetensors",
    re.IGNORECASE,
)
_OTHER_INDEX = re.compile(r"(pytorch_model|tf_model|flax_model|consolidated)\b.*\.index\.json")
_VARIANT = re.compile(r"(model|pytorch_model)\.[\w-]+?(-\d{5}-of-\d{5})?\.(safetensors|bin)")


@dataclass(frozen=True, slots=True)
class Selection:
    """Files to download; `entry` is the path to serve in their directory, "" for the directory."""

    files: tuple[RemoteFile, ...]
    entry: str = ""

    @property
    def size(self) -> int:
        """Bytes of the files whose size is known."""
        return sum(max(file.size, 0) for file in self.files)


def select(files: Sequence[RemoteFile], requested: str = "", name: str = "the model") -> Selection:
    """Return what to download of `files`: `requested` is a file, a quantisation or "".

    Raises NotFound naming what is near, if there is nothing to serve.
    """
    usable = [file for file in files if not _is_ignored(file.path)]
    if requested:
        return _select_requested(usable, requested, name)
    for choose in (
        _safetensors,
        _gguf,
        _graphs("mindir"),
        _checkpoints,
        _speech,
        _pickled,
        _onnx,
        _graphs(),
    ):
        weights = choose(usable)
        if weights:
            return _with_settings(usable, weights)
    raise NotFound(f"{name} has no model that is served; {_listed(file.path for file in files)}")


def missing_parts(files: Iterable[RemoteFile]) -> list[str]:
    """Return the first part (-00002-of-00003) that is missing of each split file."""
    numbers: dict[tuple[str, ...], set[int]] = {}
    for file in files:
        if match := _PART.fullmatch(file.path):
            numbers.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
    missing = []
    for (stem, total, ending), present in sorted(numbers.items()):
        number = next(count for count in itertools.count(1) if count not in present)
        if number <= int(total):
            missing.append(f"{stem}-{number:05}-of-{total}{ending}")
    return missing


def local_files(directory: Path) -> list[RemoteFile]:
    """Return the files of a download, which may be links."""
    matches = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            with suppress(InvalidInputs, OSError):  # an odd name, and a link that leads nowhere
                matches.append(RemoteFile(relative, path.stat().st_size))
    return sorted(matches, key=lambda file: file.path)


def find_complete(directory: Path, requested: str = "") -> Selection | None:
    """Return what a download in `directory` has to serve; None if files are missing."""
    try:
        selection = select(local_files(directory), requested)
    except NotFound:
        return None
    return None if missing_parts(selection.files) else selection


def entry_of(path: Path, requested: str) -> Path:
    """Return the path to serve of a download: its directory, or a file in it."""
    selection = None if path.is_file() else find_complete(path, requested)
    return path / selection.entry if selection and selection.entry else path


def is_weights(file: RemoteFile) -> bool:
    """Return whether a file is not one of settings, which are small and downloaded first."""
    return not _SETTINGS.fullmatch(file.path)


def _is_ignored(path: str) -> bool:
    """Return whether a file is code, hidden, or of training."""
    parts = path.split("/")
    return (
        any(part.startswith(".") for part in parts)
        or path.endswith((".py", ".ipynb", ".sh"))
        or parts[-1] in ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin")
    )


def _select_requested(files: Sequence[RemoteFile], requested: str, name: str) -> Selection:
    exact = [file for file in files if file.path == requested]
    weights = exact and _with_companions(files, exact)
    if not weights:
        weights = _quantised(files, requested)
    if weights:
        return _with_settings(files, weights, is_requested=True)
    quantisations = quantisations_of(files)
    near = did_you_mean(requested, [*quantisations, *(file.path for file in files)])
    shown = (
        f"its quantisations are {', '.join(quantisations)}"
        if quantisations
        else _listed(file.path for file in files)
    )
    raise NotFound(f"{name} has no file or quantisation {requested!r}{near}; {shown}")


def quantisations_of(files: Iterable[RemoteFile]) -> list[str]:
    """Return the quantisations of the GGUF files, by name."""
    models = (file.path for file in files if _is_main(file.path))
    return sorted({match[1].upper() for path in models if (match := _QUANTISATION.search(path))})


_QUANTISATION = re.compile(
    r"[-._]((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf$",
    re.IGNORECASE,
)


def _quantised(files: Sequence[RemoteFile], requested: str) -> list[RemoteFile]:
    """Return the GGUF or ONNX file, with its parts, whose name ends with a quantisation."""
    pattern = re.compile(
        rf"(?:^|[-._/]){re.escape(requested)}(?:-\d{{5}}-of-\d{{5}})?\.(?:gguf|onnx)", re.IGNORECASE
    )
    matches = [file for file in files if pattern.search(file.path) and _is_main(file.path)]
    if not matches:
        return []
    return _with_companions(files, [min(matches, key=lambda file: (len(file.path), file.path))])


def _is_main(path: str) -> bool:
    """Return whether a file is a model, and not the projector of one."""
    name = os.path.basename(path).lower()
    return "mmproj" not in name and not name.startswith("imatrix")


def _towers(files: Sequence[RemoteFile], folder: str) -> list[RemoteFile]:
    """Return the vision tower of the GGUF files in `folder`: the one of 16 bits, if there are more.

    A model with several beside it would be served for texts only.
    """
    towers = [
        file
        for file in files
        if file.path.endswith(".gguf")
        and os.path.dirname(file.path) == folder
        and "mmproj" in os.path.basename(file.path).lower()
    ]
    towers.sort(key=lambda file: (not _HALF.search(file.path), len(file.path), file.path))
    return towers[:1]


def _with_companions(
    files: Sequence[RemoteFile], weights: Sequence[RemoteFile]
) -> list[RemoteFile]:
    """Add the other parts of split files, and the external data of ONNX, MindIR and OpenVINO."""
    chosen = {_whole(file.path) for file in weights}
    for path in tuple(chosen):
        stem = os.path.splitext(path)[0]
        chosen.update(f"{path}{ending}" for ending in ("_data", ".data"))
        if path.endswith(".xml"):
            chosen.add(f"{stem}.bin")
        if path.endswith(".pdmodel"):
            chosen.add(f"{stem}.pdiparams")
    folders = tuple(
        f"{os.path.splitext(path)[0].removesuffix('_graph')}_variables/"
        for path in chosen
        if path.endswith(".mindir")
    )
    return [
        file
        for file in files
        if _whole(file.path) in chosen
        or re.sub(r"(\.onnx)_data_\d+", r"\1", file.path) in chosen
        or (folders and file.path.startswith(folders))
    ]


def _whole(path: str) -> str:
    """Return the path without the number of a part, which all parts of a file share."""
    match = _PART.fullmatch(path)
    return f"{match[1]}-of-{match[3]}{match[4]}" if match else path


def _with_settings(
    files: Sequence[RemoteFile], weights: Sequence[RemoteFile], *, is_requested: bool = False
) -> Selection:
    graphs = sorted(file.path for file in weights if file.path.endswith(_GRAPHS))
    first = graphs[0] if graphs else ""
    is_gguf = first.endswith(".gguf")
    names = {file.path for file in weights}
    if is_gguf:  # has its settings and its tokenizer inside
        settings = [file for file in files if file.path == "README.md"]
        settings += _towers(files, os.path.dirname(first)) if _is_main(first) else []
    else:
        settings = [
            file
            for file in files
            if file.path not in names
            and _SETTINGS.fullmatch(file.path)
            and file.size <= _MAX_SETTINGS
            and not _is_foreign_index(file.path, names)
        ]
    is_entry = is_gguf or (len(graphs) == 1 and (is_requested or "/" in first))
    return Selection((*settings, *weights), first if is_entry else "")


def _is_foreign_index(path: str, weights: set[str]) -> bool:
    """Return whether `path` is the index of weights that are not chosen."""
    stem = path.removesuffix(".index.json")
    if stem == path:
        return False
    base, ending = os.path.splitext(stem)
    return not any(path.startswith(base) and path.endswith(ending) for path in weights)


def _safetensors(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    matches = [file for file in files if re.fullmatch(r"[^/]+\.safetensors", file.path)]
    names = {file.path for file in matches}
    if any(name == "model.safetensors" or _PART.fullmatch(name) for name in names):
        matches = [file for file in matches if not _VARIANT.fullmatch(file.path)]
    if any(name.startswith("model") for name in names):
        matches = [file for file in matches if not file.path.startswith("consolidated")]
    ranks = r"rank_\d+/[^/]+\.safetensors|(.*/)?\w*strategy\w*\.(ckpt|json)|\w*strategy/.*"
    return matches or _if_ranks([file for file in files if re.fullmatch(ranks, file.path)])


def _if_ranks(files: list[RemoteFile]) -> list[RemoteFile]:
    """Return `files` if slices of ranks are among them, not strategies alone."""
    return files if any(re.match(r"rank_\d+/", file.path) for file in files) else []


def _gguf(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    matches = [file for file in files if file.path.endswith(".gguf") and _is_main(file.path)]
    for quantisation in _QUANTISATIONS:
        chosen = _quantised(matches, quantisation)
        if chosen:
            return chosen
    return _with_companions(matches, matches[:1])


def _checkpoints(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    single = [file for file in files if re.fullmatch(r"[^/]+\.ckpt", file.path)]
    ranks = r"rank_\d+/[^/]+\.ckpt|(.*/)?\w*strategy\w*\.(ckpt|json)|\w*strategy/.*"
    return single or _if_ranks([file for file in files if re.fullmatch(ranks, file.path)])


def _speech(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return the model.bin of CTranslate2; OpenVINO has one beside a model.xml."""
    names = {file.path for file in files}
    is_here = "config.json" in names and any(name.startswith("vocabulary.") for name in names)
    is_here = is_here and "model.xml" not in names
    return [file for file in files if is_here and file.path == "model.bin"]


def _pickled(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    pattern = r"(pytorch_model|adapter_model)(-\d{5}-of-\d{5})?\.bin"
    return [file for file in files if re.fullmatch(pattern, file.path)]


def _onnx(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return model.onnx with its external data, else all ONNX files of the top directory."""
    matches = [file for file in files if file.path.endswith(".onnx")]
    mains = [file for file in matches if os.path.basename(file.path) == "model.onnx"]
    chosen = sorted(mains, key=lambda file: len(file.path))[:1]
    if not chosen:
        depth = min((file.path.count("/") for file in matches), default=0)
        chosen = [file for file in matches if file.path.count("/") == depth]
    return _with_companions(files, chosen)


def _graphs(*endings: str) -> Callable[[Sequence[RemoteFile]], list[RemoteFile]]:
    """Return a function that chooses all files of formats with one file for a model."""
    known = endings or (
        *("pt2", "xml", "tflite", "pdmodel", "pb", "skops", "ubj", "cbm", "pmml", "ms"),
        *("torchscript", "jit", "ptl", "pt"),
    )
    pattern = re.compile(rf"[^/]+\.({'|'.join(known)})")

    def choose(files: Sequence[RemoteFile]) -> list[RemoteFile]:
        matches = [file for file in files if pattern.fullmatch(file.path)]
        if any(file.path == "saved_model.pb" for file in matches):
            matches += [file for file in files if file.path.startswith(("variables/", "assets/"))]
        return _with_companions(files, matches)

    return choose


def _listed(paths: Iterable[str]) -> str:
    names = [path for path in paths if not path.startswith(".")]
    shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
    return f"its files are {shown}" if names else "it has no files"
