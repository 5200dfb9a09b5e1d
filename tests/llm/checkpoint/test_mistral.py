"""Mistral's own format: settings, tensors and the vocabulary.

The chat and the special tokens are as mistral_common 1.13 has them for the published tekken.json.
"""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.checkpoint.gguf.pre_tokenizers import PATTERNS
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from mindspore_serving.servable.repository import is_language_model
from tests.llm.tokenization.test_chatglm import LANGUAGES

PARAMS: dict[str, Any] = {
    "dim": 16, "n_layers": 1, "head_dim": 8, "hidden_dim": 24, "n_heads": 4, "n_kv_heads": 2,
    "norm_eps": 1e-5, "vocab_size": 300, "rope_theta": 100.0, "model_type": "transformer",
}  # fmt: skip
SHAPES = {
    "tok_embeddings.weight": (300, 16), "norm.weight": (16,), "output.weight": (300, 16),
    "layers.0.attention.wq.weight": (32, 16), "layers.0.attention.wk.weight": (16, 16),
    "layers.0.attention.wv.weight": (16, 16), "layers.0.attention.wo.weight": (16, 32),
    "layers.0.feed_forward.w1.weight": (24, 16), "layers.0.feed_forward.w2.weight": (16, 24),
    "layers.0.feed_forward.w3.weight": (24, 16), "layers.0.attention_norm.weight": (16,),
    "layers.0.ffn_norm.weight": (16,),
}  # fmt: skip
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Who? 你好"},
]
NUM_SPECIAL = 24


def write(path: Path, **more: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    tensors = {name: random.normal(size=s).astype(np.float32) for name, s in SHAPES.items()}
    save_file(tensors, path / "consolidated.safetensors")
    (path / "params.json").write_text(json.dumps({**PARAMS, **more}))
    return tensors


def write_tekken(path: Path, version: str = "v3", **more: Any) -> dict[bytes, int]:
    """A vocabulary of bytes and of pieces of the texts; tokens behind its size are not of it."""
    pieces = [piece.encode() for text in LANGUAGES for piece in (text[:2], text[:3], text[:5])]
    tokens = list(dict.fromkeys([*(bytes([byte]) for byte in range(256)), *filter(None, pieces)]))
    vocab = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*tokens, b"behind the end"])
    ]
    config = {
        "pattern": PATTERNS["tekken"][0],
        "default_vocab_size": NUM_SPECIAL + len(tokens),
        "default_num_special_tokens": NUM_SPECIAL,
        "version": version,
        **more,
    }
    (path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    return {token: NUM_SPECIAL + rank for rank, token in enumerate(tokens)}


def test_settings_become_those_of_config_json(tmp_path: Path) -> None:
    write(tmp_path, sliding_window=None, max_seq_len=4096)
    write_tekken(tmp_path)
    assert is_language_model(str(tmp_path))
    assert Checkpoint.open(tmp_path).config == {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu",
        "hidden_size": 16, "num_hidden_layers": 1, "head_dim": 8, "intermediate_size": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "vocab_size": 300, "rope_theta": 100.0, "max_position_embeddings": 4096,
        "sliding_window": None, "tie_word_embeddings": False,
    }  # fmt: skip


def rotated(vectors: np.ndarray, position: int, *, pairs: bool) -> np.ndarray:
    """Vectors [heads, 8] at a position: pairs of neighbours, or of halves, turn by an angle."""
    angles = position * 100.0 ** (-np.arange(4) / 4)
    turn = np.cos(angles) + 1j * np.sin(angles)
    if pairs:
        numbers = vectors[:, ::2] + 1j * vectors[:, 1::2]
        turned = numbers * turn
        return np.stack([turned.real, turned.imag], -1).reshape(vectors.shape)
    turned = (vectors[:, :4] + 1j * vectors[:, 4:]) * turn
    return np.concatenate([turned.real, turned.imag], 1)


def test_tensors_have_the_names_and_the_order_of_hugging_face(tmp_path: Path) -> None:
    stored = write(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    layer = "model.layers.0."
    for name, role in (("feed_forward.w2", "mlp.down_proj"), ("attention.wo", "self_attn.o_proj")):
        found = checkpoint.f32(f"{layer}{role}.weight")
        np.testing.assert_array_equal(found, stored[f"layers.0.{name}.weight"])
    x = np.random.default_rng(1).normal(size=(2, 16))
    scores = []
    for prefix, names, pairs in (
        ("", ("attention.wq", "attention.wk"), True),
        ("model.", ("self_attn.q_proj", "self_attn.k_proj"), False),
    ):
        weights = [f"{prefix}layers.0.{name}.weight" for name in names]
        matrices = [stored[name] if pairs else checkpoint.f32(name) for name in weights]
        q, k = (
            rotated((m @ x[i]).reshape(-1, 8), at, pairs=pairs)
            for i, (m, at) in enumerate(zip(matrices, (7, 3), strict=True))
        )
        scores.append(q @ k.T)
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"moe": {"num_experts": 8}}, "params.json has moe, expected the settings of a dense"),
        ({"vision_encoder": {"hidden_size": 2}}, "params.json has vision_encoder, expected the"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "params.json has quantization, exp"),
    ],
)
def test_other_models_of_mistral_are_refused(
    tmp_path: Path, more: dict[str, Any], text: str
) -> None:
    write(tmp_path, **more)
    with pytest.raises(StartError, match=text):
        Checkpoint.open(tmp_path)


def test_tensors_of_other_models_are_refused(tmp_path: Path) -> None:
    tensors = write(tmp_path)
    tensors["vision_encoder.patch_conv.weight"] = np.zeros(2, np.float32)
    save_file(tensors, tmp_path / "consolidated.safetensors")
    with pytest.raises(StartError, match="'vision_encoder.patch_conv.weight', expected those of a"):
        Checkpoint.open(tmp_path)


def test_tokens_of_tiktoken_follow_the_special_tokens(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="it is the reference")
    ranks = write_tekken(tmp_path)
    tokenizer = Tokenizer.open(tmp_path)
    expected = tiktoken.Encoding(
        "tekken",
        pat_str=PATTERNS["tekken"][0],
        mergeable_ranks={token: index - NUM_SPECIAL for token, index in ranks.items()},
        special_tokens={},
    )
    for text in LANGUAGES:
        ids = [NUM_SPECIAL + index for index in expected.encode(text)]
        assert tokenizer.encode(text) == [1, *ids], text
        assert tokenizer.decode(ids) == text
    assert tokenizer.vocab_size == NUM_SPECIAL + len(ranks)
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.token_id("<SPECIAL_20>") == 20
    assert tokenizer.encode("[INST]", add_special=False) == [3]


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "v3",
            "<s>[INST]Hi there[/INST]Hello!</s>[INST]Be brief.\n\nWho? 你好[/INST]",
        ),
        (
            "v7",
            "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi there[/INST]Hello!</s>"
            "[INST]Who? 你好[/INST]",
        ),
    ],
)
def test_a_chat_has_the_form_of_its_version(tmp_path: Path, version: str, text: str) -> None:
    write_tekken(tmp_path, version)
    template = ChatTemplate.open(tmp_path, Tokenizer.open(tmp_path).special_tokens)
    assert template is not None
    assert template.render(MESSAGES) == text
    with pytest.raises(InvalidInputs, match="role"):
        template.render([{"role": "narrator", "content": "x"}])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"pattern": "."}, "splits text by a pattern that is not supported: '.'"),
        ({"default_num_special_tokens": 3}, "has 3 special tokens and .* expected each token once"),
        ({"default_vocab_size": None}, "is no tekken.json"),
    ],
)
def test_an_unusable_vocabulary_is_refused(tmp_path: Path, more: dict[str, Any], text: str) -> None:
    write_tekken(tmp_path, **more)
    with pytest.raises(StartError, match=text):
        Tokenizer.open(tmp_path)


def test_files_of_hugging_face_come_first(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["Other"], "num_attention_heads": 4}')
    with pytest.raises(StartError, match="expected those of None heads"):
        Checkpoint.open(tmp_path)
