"""Settings of a Parakeet model: an encoder whose frames have tokens, and no decoder."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.sounds.features import FRAMES, HOP, RATE
from mindspore_serving.llm.speech.models import (
    SpeechFamily,
    SpeechModel,
    SpeechSizes,
    SpeechTokens,
    expect_shapes,
    expect_value,
    read_preparation,
    read_size,
)
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

FAMILY = SpeechFamily("ParakeetForCTC", "parakeet_ctc", writes_times=True, samples_texts=False)
HEAD = "ctc_head"
_PREPARED = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": 512, "win_length": 400}
_MAX_HALVINGS = 6
_FLAT = (f"{HEAD}.weight", ".pointwise_conv1.weight", ".pointwise_conv2.weight")


def open_model(directory: Path) -> SpeechModel:
    """Read a directory of Hugging Face.  Raises StartError naming what is missing or wrong."""
    tokenizer, checkpoint = Tokenizer.open(directory), Checkpoint.open(directory)
    config = checkpoint.config
    encoder = config.get("encoder_config")
    if not isinstance(encoder, dict):
        raise StartError("config.json has no encoder_config, which Parakeet needs")
    prepared = read_preparation(directory)
    for name, value in _PREPARED.items() | {("preemphasis", 0.97)}:
        expect_value(prepared, name, value, "preprocessor_config.json")
    sizes = _sizes(config, encoder)
    expect_shapes(checkpoint, _shapes(sizes, encoder))
    tensors = {name: checkpoint.stored(name) for name in checkpoint.names()}
    for name, stored in tensors.items():
        if name.endswith(_FLAT):  # a convolution of one step is a product
            tensors[name] = replace(stored, shape=stored.shape[:2])
    blank = config.get("pad_token_id")
    if type(blank) is not int or not 0 <= blank < sizes.vocab_size:
        raise StartError(f"config.json: pad_token_id is {blank!r:.80}, expected a token id")
    tokens = SpeechTokens(blank, blank, sizes.vocab_size, sizes.vocab_size)
    return SpeechModel(FAMILY, Checkpoint.of(checkpoint, tensors=tensors), sizes, tokens, tokenizer)


def _sizes(config: Mapping[str, Any], encoder: Mapping[str, Any]) -> SpeechSizes:
    size = partial(read_size, encoder)
    for name, value in (("hidden_act", "silu"), ("subsampling_conv_stride", 2)):
        expect_value(encoder, name, value)
    width, heads = size("hidden_size"), size("num_attention_heads")
    if width % heads or width % 2:
        raise StartError(f"config.json: {heads} heads do not divide hidden_size {width} evenly")
    factor = size("subsampling_factor", 1 << _MAX_HALVINGS)
    halvings = factor.bit_length() - 1
    kernels = [size(name, 255) for name in ("subsampling_conv_kernel_size", "conv_kernel_size")]
    if 1 << halvings != factor or not halvings or not all(kernel % 2 for kernel in kernels):
        problem = f"subsampling_factor is {factor} and kernels have {kernels}"
        raise StartError(f"config.json: {problem}, expected a power of 2 and odd sizes")
    num_bins = size("num_mel_bins", 512)
    if num_bins % factor:
        raise StartError(f"config.json: num_mel_bins is {num_bins}, not a multiple of {factor}")
    return SpeechSizes(
        width=width,
        encoder_layers=size("num_hidden_layers"),
        encoder_heads=heads,
        num_frames=-(-FRAMES // factor),
        vocab_size=read_size(config, "vocab_size"),
        num_bins=num_bins,
        scale=width**0.5 if encoder.get("scale_input", True) else 1.0,
        has_lengths=True,
        halvings=halvings,
    )


def _shapes(sizes: SpeechSizes, encoder: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors that the graph reads."""
    size = partial(read_size, encoder)
    width, inner, heads = sizes.width, size("intermediate_size"), sizes.encoder_heads
    channels, kernel = size("subsampling_conv_channels"), size("subsampling_conv_kernel_size")
    stem = "encoder.subsampling"
    bins = sizes.num_bins >> sizes.halvings
    shapes: dict[str, tuple[int, ...]] = {
        f"{HEAD}.weight": (sizes.vocab_size, width, 1),
        f"{stem}.layers.0.weight": (channels, 1, kernel, kernel),
        f"{stem}.linear.weight": (width, channels * bins),
    }
    for number in range(2, 3 * sizes.halvings - 1, 3):
        shapes[f"{stem}.layers.{number}.weight"] = (channels, 1, kernel, kernel)
        shapes[f"{stem}.layers.{number + 1}.weight"] = (channels, channels, 1, 1)
    for layer in range(sizes.encoder_layers):
        stem = f"encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj"):
            shapes[f"{stem}.self_attn.{part}.weight"] = (width, width)
        for part in ("bias_u", "bias_v"):
            shapes[f"{stem}.self_attn.{part}"] = (heads, width // heads)
        for number in (1, 2):
            shapes[f"{stem}.feed_forward{number}.linear1.weight"] = (inner, width)
            shapes[f"{stem}.feed_forward{number}.linear2.weight"] = (width, inner)
        shapes[f"{stem}.conv.pointwise_conv1.weight"] = (2 * width, width, 1)
        shapes[f"{stem}.conv.pointwise_conv2.weight"] = (width, width, 1)
        shapes[f"{stem}.conv.depthwise_conv.weight"] = (width, 1, size("conv_kernel_size"))
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{stem}.conv.norm.{name}"] = (width,)
        for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
            shapes[f"{stem}.norm_{norm}.weight"] = shapes[f"{stem}.norm_{norm}.bias"] = (width,)
    return shapes
