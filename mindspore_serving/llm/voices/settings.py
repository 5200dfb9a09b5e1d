"""Files of voices: Piper's (NAME.onnx, NAME.onnx.json), and directories of Kokoro.

Reads settings and styles, no model.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mindspore_serving import file_check
from mindspore_serving.errors import InvalidField, StartError

Floats: TypeAlias = npt.NDArray[np.float32]

KOKORO_RATE = 24_000
KOKORO_LANGUAGES = {  # by the first letter of a voice's name
    "a": "en-us", "b": "en-gb", "e": "es", "f": "fr-fr", "h": "hi", "i": "it", "p": "pt-br",
}  # fmt: skip
_ESPEAK = {"en-gb": "en", "fr-fr": "fr"}  # espeak-ng's name of a language, where it is another
MIN_RATE, MAX_RATE = 8000, 192_000
MAX_STYLE_FILE = 1 << 30  # bytes of all styles
_PAD, _BEGIN, _END = "_", "^", "$"  # symbols of Piper
# Letters of Kokoro for pairs of the International Phonetic Alphabet; the longest come first.
_LETTERS = {
    "dʒ": "ʤ", "dz": "ʣ", "tʃ": "ʧ", "ts": "ʦ", "aɪ": "I", "aʊ": "W", "eɪ": "A", "oʊ": "O",
    "əʊ": "Q", "ɔɪ": "Y",
}  # fmt: skip
_NAMES = ("voices*.bin", "voices*.npz")


class _Sound(msgspec.Struct):
    sample_rate: int


class _Espeak(msgspec.Struct):
    voice: str


class _Scales(msgspec.Struct):
    noise_scale: float = 0.667
    length_scale: float = 1.0
    noise_w: float = 0.8


class _PiperFile(msgspec.Struct):
    """Content of NAME.onnx.json, as far as it is used."""

    audio: _Sound
    phoneme_id_map: dict[str, list[int]]
    num_symbols: int
    espeak: _Espeak = msgspec.field(default_factory=lambda: _Espeak(""))
    inference: _Scales = msgspec.field(default_factory=_Scales)
    phoneme_type: str = "espeak"
    num_speakers: int = 1
    speaker_id_map: dict[str, int] = {}
    default_speaker_id: int = 0
    vowel_clusters: list[list[str]] = []


@dataclass(frozen=True, slots=True)
class Reading:
    """Way from a text to phonemes: espeak-ng in `language`, or letter by letter if that is ""."""

    language: str
    clusters: tuple[tuple[str, ...], ...] = ()  # that are one phoneme


@dataclass(frozen=True, slots=True)
class PiperVoices:
    """Voices of a model of Piper; `scales` are noise, length and noise of lengths."""

    model: Path
    rate: int
    voices: tuple[str, ...]
    reading: Reading
    scales: tuple[float, float, float]
    ids: Mapping[str, list[int]]
    speakers: Mapping[str, int] = field(default_factory=dict)
    num_symbols: int = 0

    architecture = "Piper"
    max_phonemes = 400  # of a piece: longer sentences are cut
    is_trimmed = False

    @property
    def languages(self) -> tuple[str, ...]:
        return (self.reading.language,) if self.reading.language else ()

    def read_as(self, voice: str, language: str) -> Reading:
        """Return how a voice reads.  Raises InvalidField for another language."""
        if language and language != self.reading.language:
            spoken = self.reading.language or "its language"
            problem = f"is {language!r:.40}, this voice has {spoken} alone"
            raise InvalidField("language", problem)
        return self.reading

    def split(self, sentence: list[str]) -> list[list[str]]:
        """Return a sentence in pieces that the model takes."""
        return _cut([phoneme for phoneme in sentence if phoneme in self.ids], self.max_phonemes)

    def to_ids(self, piece: list[str]) -> list[int]:
        """Return the ids of phonemes: each is followed by a pad."""
        pad = self.ids[_PAD]
        ids = [*self.ids[_BEGIN], *pad]
        for phoneme in piece:
            ids += [*self.ids[phoneme], *pad]
        return [*ids, *self.ids[_END]]


@dataclass(frozen=True, slots=True)
class KokoroVoices:
    """Voices of a model of Kokoro; a style has a row for each number of phonemes."""

    model: Path
    voices: tuple[str, ...]
    styles: Mapping[str, Floats]
    ids: Mapping[str, int]

    rate = KOKORO_RATE
    architecture = "Kokoro"
    max_phonemes = 510
    is_trimmed = True  # the silence around sentences is cut

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(sorted(KOKORO_LANGUAGES.values()))

    def read_as(self, voice: str, language: str) -> Reading:
        """Return how a voice reads.  Raises InvalidField for a language without phonemes here."""
        chosen = language or KOKORO_LANGUAGES.get(voice[0], "")
        if chosen not in KOKORO_LANGUAGES.values():
            known = ", ".join(self.languages)
            name = f"is {language!r:.40}" if language else f"is missing, and {voice} has none here"
            raise InvalidField("language", f"{name}, expected one of {known}")
        return Reading(_ESPEAK.get(chosen, chosen))

    def split(self, sentence: list[str]) -> list[list[str]]:
        """Return a sentence in the letters of Kokoro, in pieces that the model takes."""
        text = unicodedata.normalize("NFC", "".join(sentence))
        for pair, letter in _LETTERS.items():
            text = text.replace(pair, letter)
        return _cut([letter for letter in text.strip() if letter in self.ids], self.max_phonemes)

    def to_ids(self, piece: list[str]) -> list[int]:
        """Return the ids of phonemes, between two pads."""
        return [0, *(self.ids[phoneme] for phoneme in piece), 0]

    def style(self, voice: str, count: int) -> Floats:
        """Return the style of a voice for a piece of `count` phonemes, (1, width)."""
        rows = self.styles[voice]
        style: Floats = rows[min(max(count, 1), len(rows)) - 1].reshape(1, -1)
        return style


Voices: TypeAlias = PiperVoices | KokoroVoices


def open_voices(path: str | Path) -> Voices:
    """Read the files at `path`.  Raises StartError naming the file and what is missing or wrong."""
    model = Path(file_check.find_voice(path))
    settings = Path(f"{model}.json")
    return _open_piper(model, settings) if settings.is_file() else _open_kokoro(model)


def _open_piper(model: Path, file: Path) -> PiperVoices:
    try:
        read = msgspec.json.decode(file.read_bytes(), type=_PiperFile)
    except (OSError, msgspec.DecodeError) as error:
        raise StartError(f"{file.name} is wrong: {error}") from None
    if read.phoneme_type not in ("espeak", "text"):
        kinds = "espeak or text: other libraries of phonemes are not used"
        raise StartError(f"{file.name}: phoneme_type is {read.phoneme_type!r}, expected {kinds}")
    _check_rate(file, read.audio.sample_rate)
    for symbol in (_PAD, _BEGIN, _END):
        if symbol not in read.phoneme_id_map:
            raise StartError(f"{file.name}: phoneme_id_map has no {symbol!r}")
    for phoneme, ids in read.phoneme_id_map.items():
        if not all(0 <= number < read.num_symbols for number in ids):
            problem = f"{phoneme!r} has {ids}, expected 0 to {read.num_symbols - 1}"
            raise StartError(f"{file.name}: phoneme_id_map: {problem}")
    speakers = _speakers(file, read, model.stem)
    is_text = read.phoneme_type == "text"
    return PiperVoices(
        model=model,
        rate=read.audio.sample_rate,
        voices=tuple(speakers),
        reading=Reading(
            "" if is_text else read.espeak.voice, tuple(map(tuple, read.vowel_clusters))
        ),
        scales=(
            read.inference.noise_scale, read.inference.length_scale, read.inference.noise_w,
        ),
        ids=read.phoneme_id_map,
        speakers=speakers if read.num_speakers > 1 else {},
        num_symbols=read.num_symbols,
    )  # fmt: skip


def _speakers(file: Path, read: _PiperFile, stem: str) -> dict[str, int]:
    """Return the numbers of the speakers by name, the default first."""
    if read.num_speakers <= 1:
        return {stem: 0}
    names = read.speaker_id_map or {str(number): number for number in range(read.num_speakers)}
    wrong = next((name for name, n in names.items() if not 0 <= n < read.num_speakers), None)
    if wrong is not None:
        problem = f"{wrong!r} is {names[wrong]}, expected 0 to {read.num_speakers - 1}"
        raise StartError(f"{file.name}: speaker_id_map: {problem}")
    return dict(sorted(names.items(), key=lambda pair: pair[1] != read.default_speaker_id))


def _check_rate(file: Path, rate: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        expected = f"expected {MIN_RATE:,} to {MAX_RATE:,}"
        raise StartError(f"{file.name}: sample_rate is {rate:,}, {expected}")


def _open_kokoro(model: Path) -> KokoroVoices:
    file = model.parent / "config.json"
    try:
        content: Any = msgspec.json.decode(file.read_bytes())
        ids = msgspec.convert(content["vocab"], dict[str, int])
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise StartError(f"{file.name} has no vocab of phonemes: {error}") from None
    if any(number < 1 for number in ids.values()) or any(len(letter) != 1 for letter in ids):
        raise StartError(f"{file.name}: vocab should have a number from 1 for each letter")
    (styles_file, *_) = (path for name in _NAMES for path in sorted(model.parent.glob(name)))
    styles = _read_styles(styles_file)
    return KokoroVoices(model, tuple(sorted(styles)), styles, ids)


def _read_styles(file: Path) -> dict[str, Floats]:
    """Return the styles of a file of numpy arrays, (phonemes, width) each."""
    if file.stat().st_size > MAX_STYLE_FILE:
        raise StartError(f"{file.name} has more than {MAX_STYLE_FILE >> 20} MiB")
    styles: dict[str, Floats] = {}
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            for name in arrays.files:
                rows = np.asarray(arrays[name], np.float32)
                styles[name] = rows.reshape(len(rows), -1)
    except Exception as error:  # zipfile and numpy raise whatever a broken file leads to
        text = f"{file.name} is no file of voices (numpy's .npz): {error}"
        raise StartError(text) from None
    is_good = [rows.size and np.isfinite(rows).all() for rows in styles.values()]
    if not styles or not all(is_good) or len({rows.shape[1] for rows in styles.values()}) != 1:
        text = "expected finite numbers, of one width"
        raise StartError(f"{file.name} has broken voices: {text}")
    return styles


def _cut(phonemes: list[str], limit: int) -> list[list[str]]:
    """Return phonemes in pieces of up to `limit`, cut at the last space if there is one."""
    pieces: list[list[str]] = []
    while len(phonemes) > limit:
        part = phonemes[:limit]
        at = limit - part[::-1].index(" ") if " " in part[limit // 2 :] else limit
        pieces.append(phonemes[:at])
        phonemes = phonemes[at:]
    return [piece for piece in (*pieces, phonemes) if any(map(str.strip, piece))]
