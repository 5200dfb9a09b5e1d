"""Files that are no model: Git LFS pointers, web pages, archives and unfinished downloads.

Each text says what a file is and what to do; "" means that it could be a model. Knows no format
beyond its first bytes, and which suffixes are of archives.
"""

import json
import os
import re
from pathlib import Path

WHISPER_GGML = b"lmgg"  # the first bytes of whisper.cpp's files
SPEECH_WEIGHTS, _SPEECH = "model.bin", b"WhisperSpec"  # of CTranslate2
_MAX_SETTINGS = 4 << 20  # bytes of a file of settings
HEAD = 512  # bytes; a tar archive is recognized at 257
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d{1,15})$", re.MULTILINE)
_HTML = re.compile(rb"\A(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body)\b", re.IGNORECASE)
_ARCHIVES = (  # offset, bytes, name
    (0, b"PK\x03\x04", "a ZIP archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x1f\x8b\x08", "compressed by gzip"),
    (0, b"BZh", "compressed by bzip2"),
    (0, b"\xfd7zXZ\x00", "compressed by xz"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
)
# Suffixes of models that are archives themselves.
_ARE_ARCHIVES = (
    *(".pt", ".pt2", ".pth", ".bin", ".skops", ".jit", ".torchscript", ".ts", ".ptl"),
    *(".ckpt", ".pkl", ".pickle", ".joblib", ".sav"),
)
_REFUSAL = re.compile(  # what servers send instead of a file
    rb"not found|unauthorized|forbidden|denied|invalid username|access to|AccessDenied|NoSuchKey",
    re.IGNORECASE,
)
OFFLINE_MODEL = (
    "is an offline model (OM), compiled by ATC for one kind of Ascend device and not run here: "
    "serve the MindIR or ONNX file that it was made of, or export one by mindspore.export or "
    "torch.onnx.export"
)
_OFFLINE_MAGIC = b"IMOD"
_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".download", ".aria2")
_HUB_DOWNLOADS = ".cache/huggingface/download"  # below the directory of `hf download --local-dir`


def why_no_model(path: str | os.PathLike[str], *, may_be_archive: bool = False) -> str:
    """Return what the file at `path` is instead of a model, with what to do; "" if it may be one.

    A file that cannot be read may be one. So may an archive, by its suffix or if `may_be_archive`.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return ""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _UNFINISHED:
        return f"is a download that has not ended (its suffix is {suffix}): wait for it"
    if head.startswith(_LFS):
        return _pointer(head)
    if head.startswith(_OFFLINE_MAGIC) or suffix == ".om":
        return OFFLINE_MODEL
    if _HTML.match(head):
        return (
            "is a web page (HTML), as a server sends for an error, a login or a preview: download "
            "the file itself; on the Hugging Face hub its URL has /resolve/, not /blob/"
        )
    if os.path.exists(f"{os.fspath(path)}.aria2"):
        return "is still being downloaded by aria2: wait until the file ending in .aria2 is gone"
    if not head:
        return "is empty: copy or download it again"
    if (name := _archive(head)) and not (may_be_archive or suffix in _ARE_ARCHIVES):
        return f"is {name}: unpack it, and give the file or the directory that was in it"
    if len(head) < HEAD and _REFUSAL.search(head) and _is_text(head):
        note = head.decode("ascii").strip()
        return f"holds only a server's refusal, {note!r:.200}: download the file again"
    return ""


def _archive(head: bytes) -> str:
    return next((n for offset, magic, n in _ARCHIVES if head.startswith(magic, offset)), "")


def _pointer(head: bytes) -> str:
    match = _LFS_SIZE.search(head)
    size = f" (of {int(match[1])} bytes)" if match else ""
    return (
        f"is a Git LFS pointer, not the file itself{size}: run `git lfs install` and "
        "`git lfs pull` in the repository, or download the file"
    )


def unfinished(path: str | os.PathLike[str]) -> str:
    """Return which download of the missing file or directory `path` has not ended; "" if none.

    The text begins with "; ", to follow an error.
    """
    path = Path(path)
    directory = path if path.is_dir() else path.parent
    stem = "" if path.is_dir() else path.name
    try:
        names = sorted(
            entry.name
            for entry in directory.iterdir()
            if entry.name.startswith(stem) and entry.suffix.lower() in _UNFINISHED
        )
        hub = any((directory / _HUB_DOWNLOADS).rglob("*.incomplete"))
    except OSError:
        return ""
    if not names and not hub:
        return ""
    shown = names[0] if names else f"{_HUB_DOWNLOADS}/*.incomplete"
    return f"; the download {shown} has not ended: wait for it, or start it again"


def _is_text(head: bytes) -> bool:
    return head.isascii() and all(byte >= 32 or byte in b"\t\r\n" for byte in head)


def is_speech_model(directory: str | os.PathLike[str]) -> bool:
    """Return whether a directory has a model.bin of Whisper in CTranslate2's form."""
    return _begins(os.path.join(directory, SPEECH_WEIGHTS), 6, _SPEECH)


def is_speech_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a Whisper model of whisper.cpp."""
    return os.fspath(path).endswith(".bin") and _begins(path, 0, WHISPER_GGML)


def _begins(path: str | os.PathLike[str], offset: int, magic: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(offset + len(magic))[offset:] == magic
    except OSError:
        return False


def find_voice(path: str | os.PathLike[str]) -> str:
    """Return the ONNX model of a voice at `path`; "" if there is none.

    It is a file of Piper with its NAME.onnx.json, a directory with one such file, or a directory of
    Kokoro: an ONNX model (of several, model.onnx), voices*.bin or voices*.npz, and a config.json
    with the numbers of phonemes.
    """
    path = Path(path)
    if path.is_file():
        return str(path) if path.suffix == ".onnx" and _is_piper(path) else ""
    models = sorted(path.glob("*.onnx"))
    of_piper = [model for model in models if _is_piper(model)]
    if of_piper:
        return str(of_piper[0]) if len(of_piper) == 1 else ""
    named = [model for model in models if len(models) == 1 or model.name == "model.onnx"]
    has_styles = any(path.glob("voices*.bin")) or any(path.glob("voices*.npz"))
    has_numbers = has_styles and "vocab" in _read_object(path / "config.json")
    return str(named[0]) if named and has_numbers else ""


def _is_piper(model: Path) -> bool:
    return "phoneme_id_map" in _read_object(Path(f"{model}.json"))


def _read_object(file: Path) -> dict[str, object]:
    """Return the object in a small file of JSON; {} if it has none."""
    try:
        with open(file, "rb") as opened:
            content = json.loads(opened.read(_MAX_SETTINGS))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
