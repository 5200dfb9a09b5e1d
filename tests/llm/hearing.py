"""Tiny random Whisper models made by transformers, in the forms of both kinds of directories."""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mindspore_serving.llm.checkpoint.ranks import SPELLING
from mindspore_serving.llm.sounds import features
from mindspore_serving.llm.speech.models import SpeechModel

LANGUAGES = ("en", "de", "fr")
MARKS = [
    "endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm",
    "startofprev", "nospeech", "notimestamps",
]  # fmt: skip
NUM_TIMES = 1501
SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_mel_bins": 80,
    "max_target_positions": 448,
    "init_std": 0.25,
}


def make_directory(directory: Path, **changes: Any) -> transformers.WhisperForConditionalGeneration:
    """Write a checkpoint with its tokenizer, and return its model."""
    ids = write_tokenizer(directory)
    first = ids["<|notimestamps|>"] + 1
    special = {
        "vocab_size": first + NUM_TIMES,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "eos_token_id": ids["<|endoftext|>"],
        "bos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**SIZES, **special, **changes})
    model = transformers.WhisperForConditionalGeneration(config).eval()
    never = [ids[f"<|{name}|>"] for name in MARKS[1:-1]]
    model.generation_config = transformers.GenerationConfig(
        **{name: value for name, value in special.items() if name != "vocab_size"},
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
        no_timestamps_token_id=first - 1,
        suppress_tokens=[5, 6, *never],
        begin_suppress_tokens=[32, ids["<|endoftext|>"]],
        max_initial_timestamp_index=50,
        alignment_heads=[[0, 1], [1, 0], [1, 2]],
        prev_sot_token_id=ids["<|startofprev|>"],
    )
    model.save_pretrained(directory)
    return model


def write_tokenizer(directory: Path) -> dict[str, int]:
    """Write a tokenizer of bytes and special tokens, and return its vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|{name}|>" for name in MARKS])
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer.get_vocab(with_added_tokens=True)


_LAYER = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
_NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}


def write_ctranslate2(model: Any, directory: Path, dtype: str) -> None:
    """Write a model as CTranslate2's converter does, its matrices as `dtype`."""
    write_tokenizer(directory)
    generation, config = model.generation_config, model.config
    noted = {
        "suppress_ids": generation.suppress_tokens,
        "suppress_ids_begin": generation.begin_suppress_tokens,
        "alignment_heads": generation.alignment_heads,
        "lang_ids": list(generation.lang_to_id.values()),
    }
    (directory / "config.json").write_text(json.dumps(noted))
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in _named(model).items():
        is_matrix = name.endswith("weight") and array.ndim == 2
        if is_matrix and dtype == "int8":
            scale = 127 / np.maximum(np.abs(array).max(-1), 1e-9)
            arrays[name + "_scale"] = scale.astype(np.float32)
            arrays[name] = np.round(array * scale[:, None]).astype(np.int8)
        elif is_matrix and dtype == "int16":
            scale = np.float32(1023 / np.abs(array).max())
            arrays[name + "_scale"] = np.array(scale)
            arrays[name] = np.round(array * scale).astype(np.int16)
        else:
            arrays[name] = array.astype("float16" if dtype == "float16" else "float32")
    for stack, heads in (
        ("encoder", config.encoder_attention_heads),
        ("decoder", config.decoder_attention_heads),
    ):
        arrays[f"{stack}/num_heads"] = np.array(heads, np.int16)
    (directory / "model.bin").write_bytes(_file(arrays))


def _named(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    state = {name: array.numpy() for name, array in model.model.state_dict().items()}
    named = {}
    for stack, layers in (
        ("encoder", model.config.encoder_layers),
        ("decoder", model.config.decoder_layers),
    ):
        for layer in range(layers):
            stem = f"{stack}.layers.{layer}"
            for place, source in _LAYER.items():
                if stack == "encoder" and place.startswith("attention/"):
                    continue
                target = f"{stack}/layer_{layer}/{place}"
                if isinstance(source, str):
                    named[f"{target}/gamma"] = state[f"{stem}.{source}.weight"]
                    named[f"{target}/beta"] = state[f"{stem}.{source}.bias"]
                    continue
                weights = [state[f"{stem}.{part}.weight"] for part in source]
                biases = [
                    state.get(f"{stem}.{part}.bias", np.zeros(len(weight), np.float32))
                    for part, weight in zip(source, weights, strict=True)
                ]
                named[f"{target}/weight"] = np.concatenate(weights)
                named[f"{target}/bias"] = np.concatenate(biases)
        named[f"{stack}/layer_norm/gamma"] = state[f"{stack}.layer_norm.weight"]
        named[f"{stack}/layer_norm/beta"] = state[f"{stack}.layer_norm.bias"]
        places = state[f"{stack}.embed_positions.weight"]
        named[f"{stack}/position_encodings/encodings"] = places
    for number in (1, 2):
        for kind in ("weight", "bias"):
            named[f"encoder/conv{number}/{kind}"] = state[f"encoder.conv{number}.{kind}"]
    named["decoder/embeddings/weight"] = state["decoder.embed_tokens.weight"]
    return named


def _file(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    parts = [struct.pack("<I", 6), _text("WhisperSpec"), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        kind = struct.pack("<BI", _NUMBERS[str(array.dtype)], array.nbytes)
        parts += [_text(name), shape, kind, array.tobytes()]
    alias = (_text("decoder/projection/weight"), _text("decoder/embeddings/weight"))
    return b"".join([*parts, struct.pack("<I", 1), *alias])


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


_PARTS = {
    "self_attn_layer_norm": "attn_ln",
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
_NAMES = {
    "model.encoder.embed_positions.weight": "encoder.positional_embedding",
    "model.decoder.embed_positions.weight": "decoder.positional_embedding",
    "model.decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "model.encoder.layer_norm": "encoder.ln_post",
    "model.decoder.layer_norm": "decoder.ln",
}


def write_ggml(model: SpeechModel, path: Path, kind: str = "F16") -> None:
    """Write a model as whisper.cpp's converter does, and its matrices as blocks of `kind`."""
    sizes, count = model.sizes, model.tokens.end
    width, heads = sizes.width, (sizes.encoder_heads, sizes.decoder_heads)
    fields = (
        sizes.vocab_size, sizes.num_frames, width, heads[0], sizes.encoder_layers,
        sizes.max_tokens, width, heads[1], sizes.decoder_layers, sizes.num_bins, 1,
    )  # fmt: skip
    filters = features._filters(sizes.num_bins, features.WINDOW).astype(np.float32)
    parts = [b"lmgg", struct.pack("<11i", *fields), struct.pack("<2i", *filters.shape)]
    parts += [filters.tobytes(), struct.pack("<i", count)]
    bytes_of = {character: byte for byte, character in SPELLING.items()}
    for token_id in range(count):
        token = bytes(bytes_of[character] for character in model.tokenizer.token(token_id) or "")
        parts.append(struct.pack("<i", len(token)) + token)
    for name in model.checkpoint.names():
        array = model.checkpoint.f32(name)
        is_matrix = array.ndim == 2 and "embed_positions" not in name
        is_half = array.ndim == 3 and kind != "F32"
        named = kind if is_matrix else "F16" if is_half else "F32"
        if ".conv" in name and name.endswith("bias"):
            array = array[:, None]
        number = gguf.GGMLQuantizationType[named]
        content = gguf.quants.quantize(array, number).tobytes()
        label = _ggml_name(name).encode()
        head = struct.pack("<3i", array.ndim, len(label), int(number))
        parts += [head, struct.pack(f"<{array.ndim}i", *array.shape[::-1]), label, content]
    path.write_bytes(b"".join(parts))


def _ggml_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    match = re.fullmatch(r"model\.(\w+)\.layers\.(\d+)\.(.+)", stem)
    if match is None:
        return name.removeprefix("model.")
    return f"{match[1]}.blocks.{match[2]}.{_PARTS[match[3]]}.{kind}"


def make_moonshine(
    directory: Path, **changes: Any
) -> transformers.MoonshineForConditionalGeneration:
    """Write a Moonshine model with its tokenizer, and return it."""
    write_spaced_tokenizer(directory)
    torch.manual_seed(0)
    sizes = {"vocab_size": 270, "hidden_size": 32, "intermediate_size": 48}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_num_hidden_layers": 2, f"{stack}_num_attention_heads": 4}
    settings = {"max_position_embeddings": 60, "initializer_range": 0.25, "pad_token_id": 2}
    config = transformers.MoonshineConfig(**{**sizes, **settings, **changes})
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    randomise(model)
    model.save_pretrained(directory)
    return model


def write_spaced_tokenizer(directory: Path) -> None:
    """Write a tokenizer whose tokens have "▁" before words, as SentencePiece's."""
    directory.mkdir(parents=True, exist_ok=True)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(names[:3])
    tokenizer.save(str(directory / "tokenizer.json"))


def make_parakeet(directory: Path, kind: str = "CTC") -> Any:
    """Write a Parakeet model with its tokenizer, and return it."""
    write_spaced_tokenizer(directory)
    torch.manual_seed(0)
    encoder = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "subsampling_conv_channels": 8, "initializer_range": 0.25,
    }  # fmt: skip
    other = {"decoder_hidden_size": 16, "blank_token_id": 268, "pad_token_id": 2}
    fields = {"pad_token_id": 268} if kind == "CTC" else other
    config = getattr(transformers, f"Parakeet{kind}Config")(
        vocab_size=269, encoder_config=encoder, **fields
    )
    model = getattr(transformers, f"ParakeetFor{kind}")(config).eval()
    randomise(model)
    if kind != "CTC":
        model.generation_config.decoder_start_token_id = 268
        with torch.no_grad():  # blanks and tokens in turn, and frames that are left out
            model.joint.head.bias[268] += {"TDT": 4, "RNNT": 7}[kind]
            rows = torch.randn(model.joint.head.weight[269:].shape)
            model.joint.head.weight[269:] = 5 * (rows - rows.mean(1, keepdim=True))
            model.joint.head.bias[269:] -= 60  # transformers takes the likeliest of both
    model.save_pretrained(directory)
    return model


def randomise(model: Any) -> None:
    """Change norms, biases and their statistics, which begin as ones and zeros and hide faults."""
    with torch.no_grad():
        for name, values in model.state_dict().items():
            if ("norm" in name or name.endswith("bias")) and values.is_floating_point():
                values.add_(torch.rand_like(values) * 0.4)
