"""Settings of a Parakeet model: an encoder of frames that have a token each, or none (CTC).

Transducers (RNN-T, TDT) predict the tokens of a frame by those before it.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import GENERATION_CONFIG, read_optional_json
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.sounds.features import FRAMES, HOP, RATE
from mindspore_serving.llm.speech.models import (
    MAX_LAYERS,
    PredictorSizes,
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

FAMILIES = {
    f"parakeet_{kind}": SpeechFamily(
        architecture, f"parakeet_{kind}", writes_times=True, samples_texts=False
    )
    for kind, architecture in (
        ("ctc", "ParakeetForCTC"),
        ("rnnt", "ParakeetForRNNT"),
        ("tdt", "ParakeetForTDT"),
    )
}
HEAD, PROJECTOR, JOINT = "ctc_head", "encoder_projector", "joint.head"
EMBEDDING, LSTM, PREDICTED = "decoder.embedding", "decoder.lstm", "decoder.decoder_projector"
_PREPARED = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": 512, "win_length": 400}
_MAX_HALVINGS = 6
_DURATIONS = [list(range(count)) for count in range(2, 33)]
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
    noted = {**config, **read_optional_json(directory / GENERATION_CONFIG)}
    name = "pad_token_id" if sizes.predictor is None else "blank_token_id"
    blank = read_token(config, name, sizes)
    start = blank
    if noted.get("decoder_start_token_id") is not None:
        start = read_token(noted, "decoder_start_token_id", sizes)
    tokens = SpeechTokens(start, blank, sizes.vocab_size, sizes.vocab_size)
    family = FAMILIES[str(config.get("model_type"))]
    return SpeechModel(family, Checkpoint.of(checkpoint, tensors=tensors), sizes, tokens, tokenizer)


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
        encoder_layers=size("num_hidden_layers", MAX_LAYERS),
        encoder_heads=heads,
        num_frames=-(-FRAMES // factor),
        vocab_size=read_size(config, "vocab_size"),
        num_bins=num_bins,
        scale=width**0.5 if encoder.get("scale_input", True) else 1.0,
        has_lengths=True,
        halvings=halvings,
        predictor=_predictor(config),
    )


def _predictor(config: Mapping[str, Any]) -> PredictorSizes | None:
    if config.get("model_type") == "parakeet_ctc":
        return None
    expect_value(config, "hidden_act", "relu")
    durations = config.get("durations", [0, 1, 2, 3, 4])
    if config.get("model_type") != "parakeet_tdt":
        durations = []
    elif durations not in _DURATIONS:
        raise StartError(f"config.json: durations are {durations!r:.80}, expected 0, 1, 2, ...")
    return PredictorSizes(
        width=read_size(config, "decoder_hidden_size"),
        layers=read_size(config, "num_decoder_layers", 16),
        num_durations=len(durations),
        max_symbols=read_size({"max_symbols_per_step": 10, **config}, "max_symbols_per_step", 100),
    )


def _shapes(sizes: SpeechSizes, encoder: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors that the graph reads."""
    size = partial(read_size, encoder)
    width, inner, heads = sizes.width, size("intermediate_size"), sizes.encoder_heads
    channels, kernel = size("subsampling_conv_channels"), size("subsampling_conv_kernel_size")
    stem = "encoder.subsampling"
    bins = sizes.num_bins >> sizes.halvings
    shapes: dict[str, tuple[int, ...]] = {
        f"{stem}.layers.0.weight": (channels, 1, kernel, kernel),
        f"{stem}.linear.weight": (width, channels * bins),
    }
    shapes |= _head_shapes(sizes)
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


def _head_shapes(sizes: SpeechSizes) -> dict[str, tuple[int, ...]]:
    predictor = sizes.predictor
    if predictor is None:
        return {f"{HEAD}.weight": (sizes.vocab_size, sizes.width, 1)}
    inner = predictor.width
    shapes: dict[str, tuple[int, ...]] = {
        f"{PROJECTOR}.weight": (inner, sizes.width),
        f"{EMBEDDING}.weight": (sizes.vocab_size, inner),
        f"{PREDICTED}.weight": (inner, inner),
        f"{JOINT}.weight": (sizes.vocab_size + predictor.num_durations, inner),
    }
    for layer in range(predictor.layers):
        for part in ("ih", "hh"):
            shapes[f"{LSTM}.weight_{part}_l{layer}"] = (4 * inner, inner)
            shapes[f"{LSTM}.bias_{part}_l{layer}"] = (4 * inner,)
    return shapes
