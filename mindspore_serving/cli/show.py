"""`mindspore-serving show`: what a model is, and what this server would do with it.

Models on disk are described by their files; nothing is loaded into a runtime but model files that
are no language models, whose inputs and outputs only their runtime knows.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindspore_serving import backends, extras, file_check
from mindspore_serving.backends import devices, formats
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.cli.preflight import check_library
from mindspore_serving.cli.tool_settings import ShowSettings
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.hub.downloads import find_download, find_path
from mindspore_serving.hub.reference import Reference, parse_reference
from mindspore_serving.hub.selection import is_weights
from mindspore_serving.llm.catalog import DIRECTORY, ENGINES, GGUF, OPENVINO
from mindspore_serving.llm.checkpoint.model_files import CONFIG
from mindspore_serving.llm.inspection import (
    GENERATION,
    SETTINGS,
    CheckpointSummary,
    summarize_checkpoint,
    summarize_config,
)
from mindspore_serving.llm.speech.settings import is_speech, open_speech_model
from mindspore_serving.llm.voices.settings import open_voices
from mindspore_serving.servable import archive, bare, repository
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.foreign import formats as foreign
from mindspore_serving.servable.licence import find_licence, shorten_line, to_line
from mindspore_serving.servable.loader import CONFIG_FILE

_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_COUNTS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))

LANGUAGE, MODEL_FILE, SERVABLE = "language model", "model file", "servable"
VOICE, SPEECH = "text-to-speech model", "speech recognition model"

Card = dict[str, Any]


def run(settings: ShowSettings) -> int:
    """Print the card of a model; return 0, also if it is one that cannot be served.

    Raises StartError if there is no model.
    """
    reference = parse_reference(settings.model)
    card = (
        describe(settings.model, settings.runtime)
        if reference is None
        else describe_name(reference, settings.runtime)
    )
    if settings.json:
        print(json.dumps(card, indent=2))
        return 0
    width = max(len(label) for label, _ in _rows(card))
    for label, text in _rows(card):
        print(f"{label:{width}}  {to_line(text)}")
    return 0


def describe(path: str, runtime: str) -> Card:
    """Return the card of the model at `path`, with what `runtime` would do with a language model.

    Raises StartError if there is none.
    """
    location = os.path.abspath(path)
    if not os.path.exists(location):
        discover(path)  # says what is near
    card: Card = {"path": location, "licence": find_licence(_directory(location))}
    card["size_bytes"], card["num_files"] = _size_on_disk(Path(location))
    servables = discover(path).servables if archive.stem(location) else []
    if len(servables) == 1:
        return describe(os.path.join(*servables[0]), runtime) | {
            name: card[name] for name in ("path", "size_bytes", "num_files")
        }
    if os.path.isfile(os.path.join(location, CONFIG_FILE)):
        return card | {"kind": SERVABLE, "problem": ""}
    if checkpoint := repository.language_model_path(location):
        if file_check.find_voice(checkpoint):
            return card | _voices(checkpoint)
        is_sound = is_speech(checkpoint)
        return card | (_speech(checkpoint) if is_sound else _language_model(checkpoint, runtime))
    return card | _model_file(location)


def describe_name(reference: Reference, runtime: str) -> Card:
    """Return the card of a model by name: of its download, or else of what its source tells.

    Of a model that is not downloaded, settings and tokenizer are read. Raises ServingError.
    """
    cached = find_path(reference)
    if cached is not None:
        known, path = cached
        return {"name": str(known), **describe(str(path), runtime)}
    download = find_download(reference)
    files = download.selection.files
    card: Card = {
        "name": str(download.reference),
        "revision": download.listing.revision,
        "path": "",
        "licence": shorten_line(download.listing.licence),
        "size_bytes": download.selection.size,
        "num_files": len(files),
    }
    settings = [file for file in files if file.path in SETTINGS]
    weights = [file for file in files if is_weights(file)]
    names = sorted({Path(file.path).suffix.removeprefix(".") for file in weights})
    if CONFIG not in (file.path for file in settings):
        return card | {"kind": MODEL_FILE, "format": ", ".join(names), "problem": ""}
    directory = download.source.fetch(
        download.reference, download.listing, settings, lambda count: None
    )
    size = sum(max(file.size, 0) for file in weights)
    summary = summarize_config(directory, runtime, stored=", ".join(names), num_bytes=size)
    return card | _language_card(summary)


def _language_card(summary: CheckpointSummary) -> Card:
    """Return the part of a card about a language model."""
    card: Card = {"kind": LANGUAGE, **asdict(summary), "sampling": dict(summary.sampling)}
    if not card["licence"]:
        del card["licence"]
    reads = GGUF if summary.stored.startswith("GGUF") else DIRECTORY
    card["other_engines"] = {
        name: extras.installed(_package(row.library))
        for name, row in ENGINES.items()
        if reads in row.reads
    }
    return card


def _language_model(location: str, runtime: str) -> Card:
    described = foreign.language_model(location)
    path = location if described is None else described.language_path
    has_accelerator = runtime == "torch" and "gpu" in devices.usable("pytorch")
    card = _language_card(summarize_checkpoint(path, runtime, has_accelerator=has_accelerator))
    if described is not None:
        card |= {"path": path, "options": dict(described.language_options)}
    try:
        check_library(os.path.dirname(location), os.path.basename(location), runtime, None)
    except StartError as error:
        card["missing"] = str(error)
    return card


def _package(library: str) -> str:
    return library.replace("_", "-") if library != "llama_cpp" else "llama-cpp-python"


def _voices(location: str) -> Card:
    """Return the part of a card about a text-to-speech model."""
    try:
        voices = open_voices(location)
    except StartError as error:
        return {"kind": VOICE, "problem": str(error)}
    return {
        "kind": VOICE,
        "architecture": voices.architecture,
        "voices": list(voices.voices),
        "languages": list(voices.languages),
        "problem": "",
        "runtime": " ".join(formats.installed("onnx")).strip(),
        "devices": ["cpu"],
    }


def _speech(location: str) -> Card:
    """Return the part of a card about a speech recognition model."""
    try:
        model = open_speech_model(location)
    except StartError as error:
        return {"kind": SPEECH, "problem": str(error)}
    return {
        "kind": SPEECH,
        "architecture": model.family.architecture,
        "languages": list(model.languages),
        "problem": "",
        "runtime": OPENVINO,
        "devices": ["cpu"],
    }


def _model_file(location: str) -> Card:
    """Return the part of a card about a model that is no language model, loaded on the CPU."""
    described = discover(location)
    if (os.path.dirname(location), os.path.basename(location)) not in described.servables:
        names = ", ".join(name for _, name in described.servables)
        advice = "unpack it, and show" if archive.stem(location) else "show"
        raise StartError(f"'{location}' holds several models, {advice} one of them: {names}")
    spec: DeclaredModel | None = None
    try:
        version = max(bare.versions(location), default=1)
        spec = repository.bare_model(location, version, allow_pickle=False)
        directory, name = os.path.split(location)
        paths = repository.model_paths(directory, name, version, spec)
        row = backends.resolve(spec.format)
        signature = _load_signature(ModelSource(spec, paths), row)
    except ServingError as error:
        return {"kind": MODEL_FILE, "format": spec.format if spec else "", "problem": str(error)}
    library, release = formats.installed(row)
    return {
        "kind": MODEL_FILE,
        "format": spec.format,
        "problem": "",
        "runtime": f"{library} {release}".strip() or row,
        "devices": list(devices.usable(row)),
        "inputs": [_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_tensor(tensor) for tensor in signature.outputs],
    }


def _load_signature(source: ModelSource, row: str) -> Signature:
    """Load the model on the CPU as a worker does, and return its inputs and outputs."""
    model = formats.backend_class(row).load(source)
    try:
        signature: Signature = model.signature[0]
        return signature
    finally:
        model.close()


def _tensor(spec: TensorSpec) -> Card:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "dtype": str(spec.dtype) if spec.dtype else None, "shape": shape}


def _directory(location: str) -> Path:
    return Path(location if os.path.isdir(location) else os.path.dirname(location))


def _size_on_disk(path: Path) -> tuple[int, int]:
    """Return the bytes and the number of the files at `path`, without hidden ones."""
    if path.is_file():
        return path.stat().st_size, 1
    files = [
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part[0] == "." for part in file.relative_to(path).parts)
    ]
    return sum(file.stat().st_size for file in files), len(files)


def _rows(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Iterate over the lines of a card: label and text, without those that do not apply."""
    if "name" in card:
        yield "name", card["name"]
    if card.get("revision"):
        yield "revision", card["revision"]
    if card["path"]:
        yield "path", card["path"]
    yield "kind", _kind(card)
    for label, name in (("architecture", "architecture"), ("format", "format")):
        if card.get(name):
            yield label, card[name]
    if card.get("num_parameters"):
        yield "parameters", _count(card["num_parameters"])
    yield "licence", card["licence"] or "not named in its files"
    files = "1 file" if card["num_files"] == 1 else f"{card['num_files']} files"
    label = "size on disk" if card["path"] else "download"
    yield label, f"{show_bytes(card['size_bytes'])} in {files}"
    rows = _language_rows if card["kind"] == LANGUAGE else _file_rows
    yield from rows(card)


def _kind(card: Mapping[str, Any]) -> str:
    if card["kind"] == LANGUAGE:
        return f"{LANGUAGE} ({card['task']})"
    return f"servable with {CONFIG_FILE}" if card["kind"] == SERVABLE else str(card["kind"])


def _language_rows(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if card["stored"]:
        yield "weights", card["stored"]
    if card["context_length"]:
        yield "context", f"{card['context_length']:,} tokens"
    if card["task"] == GENERATION:
        formats_ = {"tools": "tool_format", "thinking": "reasoning_format"}
        named = (f"{label} ({card[name]})" for label, name in formats_.items() if card[name])
        has = ["yes" if card["has_chat_template"] else "none", *named]
        kinds = [kind for kind in ("images", "sounds") if card[f"takes_{kind}"]]
        yield "chat template", ", ".join([*has, *kinds])
    if card["sampling"]:
        yield "sampling", ", ".join(f"{name} {value}" for name, value in card["sampling"].items())
    if card.get("options"):
        yield "Modelfile", ", ".join(f"{n}={v!r:.60}" for n, v in card["options"].items())
    yield from _verdict(card, f"runtime {card['runtime']}: {card['computed']}")
    if card["weight_bytes"]:
        yield "memory", f"weights {show_bytes(card['weight_bytes'])}"
    if card["cache_bytes_per_token"]:
        size = show_bytes(1000 * card["cache_bytes_per_token"])
        longest = show_bytes(card["context_length"] * card["cache_bytes_per_token"])
        yield "", f"cache {size} per 1,000 tokens, {longest} for a full context"
    if card["state_bytes_per_sequence"]:
        yield "", f"states {show_bytes(card['state_bytes_per_sequence'])} per sequence"
    engines = card["other_engines"].items()
    shown = (f"{name} ({version or 'not installed'})" for name, version in engines)
    yield "other engines", ", ".join(shown)


def _file_rows(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if card["kind"] == SERVABLE:
        yield "served by", "its own code, which runs in workers only: `serve` shows its methods"
        return
    for kind in ("voices", "languages"):
        if card.get(kind):
            yield kind, ", ".join(card[kind])
    for kind in ("inputs", "outputs"):
        for index, tensor in enumerate(card.get(kind, ())):
            shape = "of any shape" if tensor["shape"] is None else str(tensor["shape"])
            text = f"{tensor['name']}: {tensor['dtype'] or 'any type'} {shape}"
            yield "" if index else kind, text
    if card["problem"] or "runtime" in card:
        where = ", ".join(devices.SHOWN[device] for device in card.get("devices", ()))
        yield from _verdict(card, f"{card.get('runtime', '')} on {where}")


def _verdict(card: Mapping[str, Any], text: str) -> Iterator[tuple[str, str]]:
    """Iterate over what this server would do with a model, or why it refuses it."""
    if card["problem"]:
        yield "NOT SERVED", card["problem"]
        return
    yield "served by", text
    if card.get("missing"):
        yield "MISSING", card["missing"]


def show_bytes(count: int) -> str:
    """Return a number of bytes as people read it, in decimal units: "1.52 GB"."""
    size, unit = next(((size, unit) for size, unit in _UNITS if count >= size), (1, "bytes"))
    return f"{count / size:.3g} {unit}"


def _count(number: int) -> str:
    size, unit = next(((size, unit) for size, unit in _COUNTS if number >= size), (1, ""))
    return f"{number / size:.3g} {unit}".strip()
