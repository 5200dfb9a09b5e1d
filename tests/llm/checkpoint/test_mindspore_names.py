"""Names of MindFormers, MCore and MindNLP become those of Hugging Face."""

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.mindformers.names import hugging_face_names


def test_the_names_of_mindformers_become_those_of_hugging_face() -> None:
    layer = "model.layers.3"
    pairs = {
        "model.tok_embeddings.embedding_weight": "model.embed_tokens.weight",
        f"{layer}.attention.wq.weight": f"{layer}.self_attn.q_proj.weight",
        f"{layer}.attention.wk.bias": f"{layer}.self_attn.k_proj.bias",
        f"{layer}.attention.wv.weight": f"{layer}.self_attn.v_proj.weight",
        f"{layer}.attention.wo.weight": f"{layer}.self_attn.o_proj.weight",
        f"{layer}.attention_norm.weight": f"{layer}.input_layernorm.weight",
        f"{layer}.ffn_norm.weight": f"{layer}.post_attention_layernorm.weight",
        f"{layer}.feed_forward.w1.weight": f"{layer}.mlp.gate_proj.weight",
        f"{layer}.feed_forward.w2.weight": f"{layer}.mlp.down_proj.weight",
        f"{layer}.feed_forward.w3.weight": f"{layer}.mlp.up_proj.weight",
        "model.norm_out.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    }
    assert hugging_face_names(pairs) == pairs


def test_the_names_of_mindspores_layers_become_those_of_hugging_face() -> None:
    pairs = {
        "model.embed_tokens.embedding_table": "model.embed_tokens.weight",
        "h.0.ln_1.gamma": "h.0.ln_1.weight",
        "h.0.ln_1.beta": "h.0.ln_1.bias",
        "step": "step",
    }
    assert hugging_face_names(pairs) == pairs


def test_internlm2_has_names_like_those_of_mindformers_and_keeps_them() -> None:
    name = "model.layers.0.feed_forward.w1.weight"
    assert hugging_face_names([name]) == {name: name}


def test_names_that_become_the_same_are_refused() -> None:
    with pytest.raises(StartError, match="'a.gamma' and 'a.weight' would both be named 'a.weight'"):
        hugging_face_names(["a.gamma", "a.weight"])
