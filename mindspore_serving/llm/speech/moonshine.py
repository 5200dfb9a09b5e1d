"""Settings of a Moonshine model: an encoder of samples, as many frames as a sound is long."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import (
    GENERATION_CONFIG,
    read_optional_json,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.sounds.features import RATE, SAMPLES, Sound
from mindspore_serving.llm.speech.models import (
    MAX_LAYERS,
    SpeechFamily,
    SpeechModel,
    SpeechSizes,
    SpeechTokens,
    expect_shapes,
    expect_value,
    read_preparation,
    read_size,
    read_token,
)
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

# Nobody speaks more tokens in a second; a text that has more repeats itself.
FAMILY = SpeechFamily("MoonshineForConditionalGeneration", "moonshine", tokens_per_second=13)
HEAD = "proj_out.weight"
CONVOLUTIONS = ((127, 64), (7, 3), (3, 2))  # sizes of kernels, and strides
_ROTARY_PART = 0.9  # of the features of a head, unless config.json says otherwise
_MAX_TOKENS = 1 << 14
_STACKS = {
    "encoder": {"input_layernorm": "self_attn_layer_norm"}
    | {"post_attention_layernorm": "final_layer_norm"},
    "decoder": {"input_layernorm": "self_attn_layer_norm"}
    | {"post_attention_layernorm": "encoder_attn_layer_norm"}
    | {"final_layernorm": "final_layer_norm"},
}


def open_model(directory: Path) -> SpeechModel:
    """Read a directory of Hugging Face.  Raises StartError naming what is missing or wrong."""
    tokenizer, checkpoint = Tokenizer.open(directory), Checkpoint.open(directory)
    config = checkpoint.config
    prepared = read_preparation(directory)
    for name, value in (("do_normalize", False), ("sampling_rate", RATE)):
        expect_value(prepared, name, value, "preprocessor_config.json")
    sizes = _sizes(config)
    named = {_renamed(name): checkpoint.stored(name) for name in checkpoint.names()}
    if config.get("tie_word_embeddings", True):
        named.pop(HEAD, None)
    checkpoint = Checkpoint.of(checkpoint, tensors=named)
    shapes = _shapes(sizes, read_size(config, "intermediate_size"))
    if HEAD in named:
        shapes[HEAD] = (sizes.vocab_size, sizes.width)
    expect_shapes(checkpoint, shapes)
    noted = {**config, **read_optional_json(directory / GENERATION_CONFIG)}
    start, end = (read_token(noted, n, sizes) for n in ("decoder_start_token_id", "eos_token_id"))
    tokens = SpeechTokens(start, end, sizes.vocab_size, sizes.vocab_size)
    return SpeechModel(FAMILY, checkpoint, sizes, tokens, tokenizer)


def num_frames(num_samples: int) -> int:
    """Return how many frames the encoder returns for a sound."""
    for kernel, stride in CONVOLUTIONS:
        num_samples = max(0, (num_samples - kernel) // stride + 1)
    return num_samples


def samples_of(sound: Sound) -> Sound:
    """Return the samples that the encoder reads: a frame at least, with silence behind a sound.

    Samples behind the last step of the first convolution have no effect.
    """
    least = 1
    for kernel, stride in reversed(CONVOLUTIONS):
        least = (least - 1) * stride + kernel
    if len(sound) < least:
        return np.pad(sound, (0, least - len(sound)))
    kernel, stride = CONVOLUTIONS[0]
    return sound[: (len(sound) - kernel) // stride * stride + kernel]


def _sizes(config: Mapping[str, Any]) -> SpeechSizes:
    size = partial(read_size, config)
    for name, value in (("encoder_hidden_act", "gelu"), ("decoder_hidden_act", "silu")):
        expect_value(config, name, value)
    width, heads = size("hidden_size"), size("decoder_num_attention_heads")
    for stack in ("encoder", "decoder"):
        for kind in ("attention", "key_value"):
            name = f"{stack}_num_{kind}_heads"
            if config.get(name) is not None:
                expect_value(config, name, heads)
    if width % heads or width // heads % 2:
        raise StartError(f"config.json: {heads} heads do not divide hidden_size {width} evenly")
    expect_value(config, "head_dim", width // heads)
    return SpeechSizes(
        width=width,
        encoder_layers=size("encoder_num_hidden_layers", MAX_LAYERS),
        decoder_layers=size("decoder_num_hidden_layers", MAX_LAYERS),
        encoder_heads=heads,
        decoder_heads=heads,
        num_frames=num_frames(SAMPLES),
        max_tokens=read_size(config, "max_position_embeddings", _MAX_TOKENS),
        vocab_size=size("vocab_size"),
        has_lengths=True,
        rotary=_angles(config, width // heads),
    )


def _angles(config: Mapping[str, Any], head_width: int) -> tuple[float, ...]:
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(stated, dict) or stated.get("rope_type", "default") != "default":
        raise StartError(f"config.json: rope_parameters are {stated!r:.80}, expected the default")
    stated = {**config, **stated}
    base, part = stated.get("rope_theta", 1e4), stated.get("partial_rotary_factor", _ROTARY_PART)
    for name, value, top in (("rope_theta", base, 1e12), ("partial_rotary_factor", part, 1.0)):
        if type(value) not in (int, float) or not 0 < value <= top:
            raise StartError(f"config.json: {name} is {value!r:.80}, expected up to {top:g}")
    turned = int(head_width * part)
    return tuple(float(base ** -(index / turned)) for index in range(0, turned, 2))


def _renamed(name: str) -> str:
    """Return Whisper's name of a tensor."""
    if name == "model.decoder.norm.weight":
        return "model.decoder.layer_norm.weight"
    parts = name.split(".")
    if parts[2:3] != ["layers"] or len(parts) < 6:
        return name
    names = _STACKS.get(parts[1], {})
    tail = [names.get(part, part) for part in parts[4:] if part != "mlp"]
    tail = ["out_proj" if part == "o_proj" else part for part in tail]
    return ".".join([*parts[:4], *tail])


def _shapes(sizes: SpeechSizes, inner: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors that the graphs read."""
    width = sizes.width
    channels = (1, width, 2 * width, width)
    shapes: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (sizes.vocab_size, width)
    }
    for number, (kernel, _) in enumerate(CONVOLUTIONS):
        stem = f"model.encoder.conv{number + 1}"
        shapes[f"{stem}.weight"] = (channels[number + 1], channels[number], kernel)
        if number:
            shapes[f"{stem}.bias"] = channels[number + 1 : number + 2]
    norms = ["model.encoder.groupnorm", "model.encoder.layer_norm", "model.decoder.layer_norm"]
    for stack, names in _STACKS.items():
        count = sizes.encoder_layers if stack == "encoder" else sizes.decoder_layers
        gates = 1 if stack == "encoder" else 2
        for layer in range(count):
            stem = f"model.{stack}.layers.{layer}"
            norms += [f"{stem}.{name}" for name in names.values()]
            for attention in ("self_attn", *(["encoder_attn"] if stack == "decoder" else [])):
                for part in ("q", "k", "v", "out"):
                    shapes[f"{stem}.{attention}.{part}_proj.weight"] = (width, width)
            shapes[f"{stem}.fc1.weight"] = (gates * inner, width)
            shapes[f"{stem}.fc2.weight"] = (width, inner)
    return shapes | {f"{norm}.weight": (width,) for norm in norms}
