"""Opening of models of speech by their directories, and the settings of Whisper's."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.file_check import is_speech_file, is_speech_model
from mindspore_serving.llm.checkpoint import ctranslate2
from mindspore_serving.llm.checkpoint.model_files import (
    GENERATION_CONFIG,
    find_config,
    read_optional_json,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.checkpoint.whisper_ggml import WhisperFile
from mindspore_serving.llm.speech import moonshine, parakeet
from mindspore_serving.llm.speech.models import (
    SpeechFamily,
    SpeechModel,
    SpeechSizes,
    SpeechTokens,
    expect_value,
    read_size,
)
from mindspore_serving.llm.speech.suppressed import suppressed_tokens
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

MULTILINGUAL_VOCABULARY = 51_865  # tokens from which on a model knows languages
WHISPER = SpeechFamily(
    "WhisperForConditionalGeneration",
    "whisper",
    takes_prompts=True,
    writes_times=True,
    language="en",
)
_OPENERS: dict[str, Callable[[Path], SpeechModel]] = {
    moonshine.FAMILY.model_type: moonshine.open_model,
    **dict.fromkeys(parakeet.FAMILIES, parakeet.open_model),
}


def is_speech(directory: str | Path) -> bool:
    """Return whether a directory or a file has a model of speech.

    It is a directory of Hugging Face or, for Whisper, one of CTranslate2 or a file of whisper.cpp.
    """
    is_named = _model_type(Path(directory)) in (WHISPER.model_type, *_OPENERS)
    return is_named or is_speech_model(directory) or is_speech_file(directory)


def open_speech_model(directory: str | Path) -> SpeechModel:
    """Read a directory, or a file of whisper.cpp.

    Raises StartError naming the file and what is missing or wrong.
    """
    directory = Path(directory)
    suppressed: tuple[Any, Any]
    open_other = _OPENERS.get(_model_type(directory))
    if open_other is not None:
        return open_other(directory)
    if is_speech_file(directory):
        file = WhisperFile(directory)
        checkpoint = Checkpoint(directory, config := file.config, file.tensors)
        tokenizer, noted = Tokenizer.of(file.tokenizer), {}
        suppressed = suppressed_tokens(tokenizer)
    elif is_speech_model(directory):
        tokenizer = Tokenizer.open(directory)
        config, tensors = ctranslate2.read_whisper(directory)
        checkpoint = Checkpoint(directory, config, tensors)
        noted = config["ctranslate2"]
        suppressed = noted.get("suppress_ids"), noted.get("suppress_ids_begin")
    else:
        tokenizer = Tokenizer.open(directory)
        checkpoint = Checkpoint.open(directory)
        config = checkpoint.config
        noted = {**config, **read_optional_json(directory / GENERATION_CONFIG)}
        suppressed = noted.get("suppress_tokens"), noted.get("begin_suppress_tokens")
    sizes = _sizes(config)
    tokens = _tokens(tokenizer, sizes, noted, suppressed)
    heads = _heads(noted.get("alignment_heads"), sizes)
    return SpeechModel(WHISPER, checkpoint, sizes, tokens, tokenizer, heads)


def _model_type(directory: Path) -> str:
    """Return the kind of model that config.json names, "" if there is none."""
    if not directory.is_dir() or is_speech_model(directory):
        return ""
    return str(find_config(directory).get("model_type", ""))


def _sizes(config: Mapping[str, Any]) -> SpeechSizes:
    size = partial(read_size, config)
    expect_value(config, "activation_function", "gelu")
    width = size("d_model")
    heads = (size("encoder_attention_heads"), size("decoder_attention_heads"))
    if any(width % count for count in heads):
        raise StartError(f"config.json: d_model is {width}, which {heads} heads do not divide")
    return SpeechSizes(
        width=width,
        num_bins=size("num_mel_bins"),
        encoder_layers=size("encoder_layers"),
        decoder_layers=size("decoder_layers"),
        encoder_heads=heads[0],
        decoder_heads=heads[1],
        num_frames=size("max_source_positions"),
        max_tokens=size("max_target_positions"),
        vocab_size=size("vocab_size"),
        scale=width**0.5 if config.get("scale_embedding") else 1.0,
    )


def _tokens(
    tokenizer: Tokenizer,
    sizes: SpeechSizes,
    noted: Mapping[str, Any],
    suppressed: tuple[Sequence[int] | None, Sequence[int] | None],
) -> SpeechTokens:
    def find(*names: str) -> int:
        ids = (tokenizer.token_id(f"<|{name}|>") for name in names)
        token_id = next((token_id for token_id in ids if token_id is not None), None)
        if token_id is None or token_id >= sizes.vocab_size:
            raise StartError(f"tokenizer.json has no token <|{names[0]}|>, which Whisper needs")
        return token_id

    no_speech = tokenizer.token_id("<|nospeech|>") or tokenizer.token_id("<|nocaptions|>")
    start, transcribe, translate = find("startoftranscript"), find("transcribe"), find("translate")
    no_times = find("notimestamps")
    is_multilingual = noted.get("is_multilingual", sizes.vocab_size >= MULTILINGUAL_VOCABULARY)
    between = range(start + 1, min(transcribe, translate)) if is_multilingual else range(0)
    names = {token_id: tokenizer.token(token_id) or "" for token_id in between}
    return SpeechTokens(
        start=start,
        end=find("endoftext"),
        transcribe=transcribe,
        translate=translate,
        previous=find("startofprev"),
        no_speech=no_speech,
        no_times=no_times,
        first_time=no_times + 1,
        first_mark=find("endoftext"),
        languages={name.strip("<|>"): token_id for token_id, name in names.items() if name},
        never=_ids(suppressed[0] or (), sizes),
        not_first=_ids(suppressed[1] or (), sizes),
    )


def _ids(values: Sequence[Any], sizes: SpeechSizes) -> tuple[int, ...]:
    is_id = [type(value) is int and value < sizes.vocab_size for value in values]
    if not all(is_id):
        raise StartError(f"tokens never to write are {list(values)!r:.200}, expected token ids")
    return tuple(value for value in values if value >= 0)


def _heads(value: Any, sizes: SpeechSizes) -> tuple[tuple[int, int], ...]:
    """Return the heads that follow the sound: those that are noted, or all of the later half."""
    layers, count = sizes.decoder_layers, sizes.decoder_heads
    pairs = [(layer, head) for layer in range(layers // 2, layers) for head in range(count)]
    for pair in value or ():
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)):
            raise StartError(f"alignment_heads has {pair!r:.80}, expected [layer, head]")
        if not (0 <= pair[0] < layers and 0 <= pair[1] < count):
            raise StartError(f"alignment_heads has {pair!r}, which the model lacks")
    return tuple((layer, head) for layer, head in value) if value else tuple(pairs)
