"""Models with an encoder and a decoder: their checkpoint, sizes and first tokens.

Knows no runtime.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.leftovers import LEFTOVERS, Leftover
from mindspore_serving.llm.checkpoint.model_files import GENERATION_CONFIG, read_optional_json
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.descriptions.families.seq2seq import (
    NORMS,
    RELATIVE,
    RENAMED,
    SEQ2SEQ,
    SINUSOIDAL,
    Seq2SeqFamily,
)
from mindspore_serving.llm.models.opening import check_tensors

ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish")
_MAX_SIZE = 1 << 20
_DEFAULT_POSITIONS = 512  # of T5, whose distances have no end
TABLE, HEAD, BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
_UNUSED = (
    Leftover(r"model\.(en|de)coder\.embed_tokens\.weight", "copies of the embedding"),
    Leftover(r"model\.(en|de)coder\.embed_positions\.weights?", "positions, which are computed"),
    Leftover(
        r"model\.decoder\.layers\.0\.encoder_attn\.relative_attention_bias\.weight", "never used"
    ),
)


@dataclass(frozen=True, slots=True)
class Seq2SeqSpec:
    """Sizes of both stacks, and how layers compute.

    `max_positions` is the longest prompt, and the longest answer with its first tokens.
    `first_position` is the row of the first one; `num_buckets` and `max_distance` are of relative
    positions.  `start` are the first tokens of the decoder, `end` is the last one of an answer that
    has no room for more; `never` and `bad_words`, of several tokens, are not written.
    """

    family: Seq2SeqFamily
    width: int
    head_width: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    vocab_size: int
    max_positions: int
    first_position: int
    activation: str
    is_gated: bool
    epsilon: float
    embedding_scale: float
    attention_scale: float
    output_scale: float
    num_buckets: int
    max_distance: int
    start: tuple[int, ...]
    end: int | None
    never: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of a token in f32, of the prompt or of the answer."""
        return 2 * 4 * self.decoder_layers * self.decoder_heads * self.head_width

    def positions(self) -> npt.NDArray[np.float32]:
        """Compute the table of sinusoidal positions, [max_positions, width]."""
        half = self.width // 2
        first = self.first_position
        rows = np.arange(first, first + self.max_positions)[:, None]
        if self.family.follows_padding:  # as tensor2tensor, in f32
            step = np.float32(-np.log(10000) / (half - 1))
            angles = rows.astype(np.float32) * np.exp(np.arange(half, dtype=np.float32) * step)
        else:
            angles = rows / np.power(10000, 2 * np.arange(half) / self.width)
        table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
        return np.asarray(table, np.float32)

    def buckets(self, *, is_causal: bool) -> npt.NDArray[np.int32]:
        """Compute the row of T5's table for each distance from 1 - max_positions on.

        A distance is the position of the key minus that of the query.
        """
        distances = np.arange(1 - self.max_positions, self.max_positions)
        count = self.num_buckets if is_causal else self.num_buckets // 2
        behind = 0 if is_causal else np.where(distances > 0, count, 0)
        steps = np.maximum(-distances, 0) if is_causal else np.abs(distances)
        exact = count // 2
        ratio = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
        far = ratio / np.float32(np.log(self.max_distance / exact)) * np.float32(count - exact)
        far = np.minimum(exact + far.astype(np.int64), count - 1)
        return (behind + np.where(steps < exact, steps, far)).astype(np.int32)


def is_seq2seq(config: Mapping[str, Any]) -> bool:
    """Return whether `config` (config.json) is of a text model with an encoder and a decoder."""
    names = config.get("architectures")
    return isinstance(names, list) and bool(names) and names[0] in SEQ2SEQ


def open_seq2seq(
    directory: str | Path, max_model_len: int | None = None
) -> tuple[Checkpoint, Seq2SeqSpec]:
    """Open a checkpoint with tensors named as BART's, and its spec.

    Raises StartError: a setting that is missing or not supported, a tensor that is not read.
    """
    checkpoint = Checkpoint.open(directory)
    noted = read_optional_json(Path(directory) / GENERATION_CONFIG)
    spec = read_spec(checkpoint.config, noted, max_model_len)
    if spec.family.is_t5:
        named = {_renamed(name): checkpoint.stored(name) for name in checkpoint.names()}
        checkpoint = Checkpoint.of(checkpoint, tensors=named)
    table = next(
        (n for n in (TABLE, "model.encoder.embed_tokens.weight") if checkpoint.has(n)), TABLE
    )
    checkpoint = _with(checkpoint, TABLE, table)
    read = {TABLE, BIAS, HEAD}
    read |= {name for name in checkpoint.names() if _is_read(name, spec)}
    return check_tensors(checkpoint, read, (*_UNUSED, *LEFTOVERS)), spec


def read_spec(
    config: Mapping[str, Any], noted: Mapping[str, Any], max_model_len: int | None = None
) -> Seq2SeqSpec:
    """Return the spec that config.json and generation_config.json (`noted`) describe.

    Raises StartError naming a setting that is missing, out of range or not supported.
    """
    family = SEQ2SEQ[config["architectures"][0]]
    reader = _Settings(config)
    if config.get("share_encoder_decoder_embeddings") is False:
        raise StartError(
            "config.json: share_encoder_decoder_embeddings is false, expected one vocabulary for "
            "prompts and answers"
        )
    sizes = _t5_sizes(reader) if family.is_t5 else _bart_sizes(reader)
    if family.positions == RELATIVE:
        sizes["max_positions"] = max_model_len or sizes["max_positions"]
    else:
        sizes["max_positions"] = min(max_model_len or _MAX_SIZE, sizes["max_positions"])
    if sizes["activation"] not in ACTIVATIONS:
        accepted = ", ".join(ACTIVATIONS)
        raise StartError(f"the activation is {sizes['activation']!r}, expected one of {accepted}")
    tied = config.get("tie_word_embeddings") is not False
    scales = family.scales_output and config.get("scale_decoder_outputs", tied)
    vocab_size = reader.size("vocab_size")
    noted = {**config, **noted}
    never, bad_words = _unwritten(noted, vocab_size)
    return Seq2SeqSpec(
        family=family,
        vocab_size=vocab_size,
        first_position=_first_position(config, family),
        output_scale=sizes["width"] ** -0.5 if scales else 1.0,
        start=_start(noted, vocab_size),
        end=_end(noted, vocab_size),
        never=never,
        bad_words=bad_words,
        **sizes,
    )


class _Settings:
    """Reader of sizes in config.json."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def size(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        value = default if value is None else value
        if type(value) is not int or not 0 < value <= _MAX_SIZE:
            raise StartError(f"config.json: {name} is {value!r}, expected 1 to {_MAX_SIZE}")
        return value


def _t5_sizes(reader: _Settings) -> dict[str, Any]:
    config, layers, heads = reader.config, reader.size("num_layers"), reader.size("num_heads")
    form = str(config.get("feed_forward_proj", "relu"))
    gate, _, activation = form.rpartition("-")
    return {
        "width": reader.size("d_model"),
        "head_width": reader.size("d_kv"),
        "encoder_layers": layers,
        "decoder_layers": reader.size("num_decoder_layers", layers),
        "encoder_heads": heads,
        "decoder_heads": heads,
        "max_positions": reader.size("n_positions", _DEFAULT_POSITIONS),
        "activation": "gelu_new" if form == "gated-gelu" else activation,
        "is_gated": gate == "gated",
        "epsilon": float(config.get("layer_norm_epsilon", 1e-6)),
        "embedding_scale": 1.0,
        "attention_scale": 1.0,
        "num_buckets": reader.size("relative_attention_num_buckets", 32),
        "max_distance": reader.size("relative_attention_max_distance", 128),
    }


def _bart_sizes(reader: _Settings) -> dict[str, Any]:
    config, width = reader.config, reader.size("d_model")
    heads = [reader.size(f"{stack}_attention_heads") for stack in ("encoder", "decoder")]
    if any(width % count for count in heads):
        raise StartError(f"config.json: d_model is {width}, which {heads} heads do not divide")
    if heads[0] != heads[1]:
        raise StartError(f"config.json: stacks have {heads} heads, expected as many in both")
    return {
        "width": width,
        "head_width": width // heads[0],
        "encoder_layers": reader.size("encoder_layers"),
        "decoder_layers": reader.size("decoder_layers"),
        "encoder_heads": heads[0],
        "decoder_heads": heads[1],
        "max_positions": reader.size("max_position_embeddings"),
        "activation": str(config.get("activation_function", "gelu")),
        "is_gated": False,
        "epsilon": 1e-5,
        "embedding_scale": width**0.5 if config.get("scale_embedding") else 1.0,
        "attention_scale": (width // heads[0]) ** -0.5,
        "num_buckets": 0,
        "max_distance": 0,
    }


def _first_position(config: Mapping[str, Any], family: Seq2SeqFamily) -> int:
    if not family.follows_padding:
        return family.offset
    padding = config.get("pad_token_id", 1)
    if type(padding) is not int or padding < 0:
        raise StartError(f"config.json: pad_token_id is {padding!r}, expected a token id")
    return padding + 1


def _start(noted: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Return the first tokens of the decoder: its start, and a token that is always first."""
    start = noted.get("decoder_start_token_id")
    start = noted.get("bos_token_id") if start is None else start
    forced = noted.get("forced_bos_token_id")
    ids: tuple[Any, ...] = (start,) if forced is None else (start, forced)
    if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise StartError(
            f"decoder_start_token_id and forced_bos_token_id are {list(ids)!r:.80}, expected token "
            "ids in config.json or generation_config.json"
        )
    return ids


def _end(noted: Mapping[str, Any], vocab_size: int) -> int | None:
    """Return the last token of an answer of the greatest length; None for any."""
    end = noted.get("forced_eos_token_id")
    if end is not None and not (type(end) is int and 0 <= end < vocab_size):
        raise StartError(f"forced_eos_token_id is {end!r:.80}, expected a token id")
    return end


def _unwritten(
    noted: Mapping[str, Any], vocab_size: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the tokens that are not written, and the sequences of tokens."""
    words = noted.get("bad_words_ids") or []
    if not all(isinstance(word, list) and all(type(n) is int for n in word) for word in words):
        raise StartError(f"bad_words_ids is {words!r:.80}, expected lists of token ids")
    never = noted.get("suppress_tokens") or []
    if not (isinstance(never, list) and all(type(token) is int for token in never)):
        raise StartError(f"suppress_tokens is {never!r:.80}, expected token ids")
    never = [*never, *(word[0] for word in words if len(word) == 1)]
    return (
        tuple(token for token in never if 0 <= token < vocab_size),
        tuple(tuple(word) for word in words if len(word) > 1),
    )


def _renamed(name: str) -> str:
    part = re.fullmatch(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\.layer_norm\.(\w+)", name)
    if part is not None:
        norm = NORMS.get((part[1], int(part[3])), "layer_norm")
        return f"model.{part[1]}.layers.{part[2]}.{norm}.{part[4]}"
    for pattern, new in RENAMED:
        name = re.sub(pattern, new, name)
    return name


def _with(checkpoint: Checkpoint, name: str, source: str) -> Checkpoint:
    """Return `checkpoint` with the tensor `source` under `name` as well."""
    if checkpoint.has(name) or not checkpoint.has(source):
        return checkpoint
    tensors = {each: checkpoint.stored(each) for each in checkpoint.names()}
    return Checkpoint.of(checkpoint, tensors={**tensors, name: tensors[source]})


def _is_read(name: str, spec: Seq2SeqSpec) -> bool:
    """Return whether the graphs read the tensor `name`."""
    match = re.fullmatch(r"model\.(encoder|decoder)\.(?:layers\.(\d+)\.)?(\w+)\..*", name)
    if match is None:
        return False
    stack, layer, part = match.groups()
    if layer is None:
        has_table = spec.family.positions not in (SINUSOIDAL, RELATIVE)
        parts = ("layer_norm", "layernorm_embedding", *(["embed_positions"] if has_table else []))
        return part in parts
    count = spec.encoder_layers if stack == "encoder" else spec.decoder_layers
    parts = ("self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")
    if spec.is_gated:
        parts += ("fc_linear",)
    if stack == "decoder":
        parts += ("encoder_attn", "encoder_attn_layer_norm")
    is_unused = part == "encoder_attn" and "relative_attention_bias" in name
    return int(layer) < count and part in parts and not is_unused
