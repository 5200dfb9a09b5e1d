"""Models of speech as the engine reads them: families, sizes, special tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_optional_json
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

MAX_SIZE, MAX_LAYERS = 1 << 20, 1 << 10
_MIN_TOKENS = 8  # of the text of a sound, however short


@dataclass(frozen=True, slots=True)
class SpeechFamily:
    """Models of an architecture.

    `language` is that of models without languages of their own, "" if it is unknown.  With
    `tokens_per_second` a text is no longer than so many tokens for a second of sound.
    """

    architecture: str
    model_type: str
    takes_prompts: bool = False
    writes_times: bool = False
    samples_texts: bool = True  # tokens are drawn, or searched, one after another
    language: str = ""
    tokens_per_second: int = 0


@dataclass(frozen=True, slots=True)
class SpeechSizes:
    """Sizes of the encoder and the decoder.

    With `has_lengths` the encoder returns as many frames as a sound has, `num_frames` at most;
    otherwise always so many.  `rotary` features of a head turn with the position.
    """

    width: int
    encoder_layers: int
    encoder_heads: int
    num_frames: int
    vocab_size: int
    num_bins: int = 0
    decoder_layers: int = 0
    decoder_heads: int = 1
    max_tokens: int = 0  # of a text with its prompt
    scale: float = 1.0  # of token embeddings
    has_lengths: bool = False
    rotary: tuple[float, ...] = ()  # angles of a position, a pair of features each
    halvings: int = 0  # of the frames, before the layers
    predictor: "PredictorSizes | None" = None


@dataclass(frozen=True, slots=True)
class PredictorSizes:
    """Sizes of what predicts a token by those before it and a frame (a transducer).

    With `num_durations` it also predicts how many frames to go on, from 0.  No more than
    `max_symbols` tokens are of the same frame, without durations, or of a frame on average.
    """

    width: int
    layers: int
    num_durations: int
    max_symbols: int


@dataclass(frozen=True, slots=True)
class SpeechTokens:
    """Special tokens; -1 for those that a model lacks.

    `languages` are tokens by code, none of a model without.  `first_time` is the token of 0.00 s,
    and each after it is 0.02 s later; it is behind the vocabulary of a model that writes no times.
    `never` are not written, `not_first` not at the beginning of a text.  Tokens from `first_mark`
    on are no text.
    """

    start: int
    end: int
    first_time: int
    first_mark: int
    transcribe: int = -1
    translate: int = -1
    previous: int = -1
    no_speech: int | None = None
    no_times: int = -1
    languages: Mapping[str, int] = field(default_factory=dict)
    never: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeechModel:
    """A checkpoint with its settings; `alignment_heads` are (layer, head), for times of words."""

    family: SpeechFamily
    checkpoint: Checkpoint
    sizes: SpeechSizes
    tokens: SpeechTokens
    tokenizer: Tokenizer
    alignment_heads: tuple[tuple[int, int], ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model is known to have."""
        single = (self.family.language,) if self.family.language else ()
        return tuple(sorted(self.tokens.languages)) or single

    def max_text(self, seconds: float, num_before: int) -> int:
        """Return how many tokens the text of a sound may have, behind `num_before` others."""
        room = self.sizes.max_tokens - num_before
        if self.family.tokens_per_second:
            return min(room, max(_MIN_TOKENS, ceil(seconds * self.family.tokens_per_second)))
        return min(room, self.sizes.max_tokens // 2)


def read_size(config: Mapping[str, Any], name: str, maximum: int = MAX_SIZE) -> int:
    """Return a size of config.json.  Raises StartError unless it is from 1 to `maximum`."""
    value = config.get(name)
    if type(value) is not int or not 0 < value <= maximum:
        raise StartError(f"config.json: {name} is {value!r:.80}, expected 1 to {maximum}")
    return value


def expect_value(
    config: Mapping[str, Any], name: str, expected: object, file: str = CONFIG
) -> None:
    """Raise StartError if a setting of a file has a value other than `expected`."""
    value = config.get(name, expected)
    if value != expected:
        raise StartError(f"{file}: {name} is {value!r:.80}, expected {expected!r}")


def read_token(noted: Mapping[str, Any], name: str, sizes: SpeechSizes) -> int:
    """Return a token of config.json, of several the first.  Raises StartError if it is none."""
    value = noted.get(name)
    value = value[0] if isinstance(value, list) and value else value
    if type(value) is not int or not 0 <= value < sizes.vocab_size:
        raise StartError(f"config.json: {name} is {value!r:.80}, expected a token id")
    return value


def read_preparation(directory: Path) -> Mapping[str, Any]:
    """Read the settings of the feature extractor, in either of the files that may have them."""
    prepared = read_optional_json(directory / "preprocessor_config.json")
    nested = read_optional_json(directory / "processor_config.json").get("feature_extractor")
    return prepared or (nested if isinstance(nested, dict) else {})


def expect_shapes(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise StartError for a tensor that is missing or has another shape than config.json says.

    A matrix may have a bias.
    """
    biases = {f"{name.removesuffix('weight')}bias": shape[:1] for name, shape in shapes.items()}
    biases = {name: shape for name, shape in biases.items() if checkpoint.has(name)}
    for name, shape in {**shapes, **biases}.items():
        actual = checkpoint.shape(name)
        if tuple(actual) != shape:
            problem = f"tensor {name!r} is {list(actual)}, expected {list(shape)}"
            raise StartError(f"{checkpoint.directory}: {problem} by config.json")
