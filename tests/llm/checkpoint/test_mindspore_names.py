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


def test_the_names_of_mindformers_telechat2_become_those_of_hugging_face() -> None:
    layer, ours = "model.layers.3", "transformer.h.3"
    pairs = {
        "model.tok_embeddings.embedding_weight": "transformer.word_embeddings.weight",
        f"{layer}.attention.wq.weight": f"{ours}.self_attention.query.weight",
        f"{layer}.attention.wk_v.weight": f"{ours}.self_attention.key_value.weight",
        f"{layer}.attention.wo.bias": f"{ours}.self_attention.dense.bias",
        f"{layer}.attention_norm.weight": f"{ours}.input_layernorm.weight",
        f"{layer}.ffn_norm.weight": f"{ours}.post_attention_layernorm.weight",
        f"{layer}.feed_forward.w1.weight": f"{ours}.mlp.gate_proj.weight",
        f"{layer}.feed_forward.w2.bias": f"{ours}.mlp.down_proj.bias",
        f"{layer}.feed_forward.w3.weight": f"{ours}.mlp.up_proj.weight",
        "model.norm_out.weight": "transformer.ln_f.weight",
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


def test_mcore_has_other_names_in_models_with_latent_attention() -> None:
    attention, layer = "decoder.layers.1.self_attention", "model.layers.1"
    pairs = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        f"{attention}.linear_q_down_proj.weight": f"{layer}.self_attn.q_a_proj.weight",
        f"{attention}.q_layernorm.weight": f"{layer}.self_attn.q_a_layernorm.weight",
        f"{attention}.linear_q_up_proj.weight": f"{layer}.self_attn.q_b_proj.weight",
        f"{attention}.linear_kv_down_proj.weight": f"{layer}.self_attn.kv_a_proj_with_mqa.weight",
        f"{attention}.kv_layernorm.weight": f"{layer}.self_attn.kv_a_layernorm.weight",
        f"{attention}.linear_kv_up_proj.weight": f"{layer}.self_attn.kv_b_proj.weight",
        "decoder.layers.1.mlp.router.weight.weight": f"{layer}.mlp.gate.weight",
        "decoder.layers.1.mlp.router.expert_bias": f"{layer}.mlp.gate.e_score_correction_bias",
        "decoder.layers.1.mlp.shared_experts.linear_fc2.weight": (
            f"{layer}.mlp.shared_experts.down_proj.weight"
        ),
        "decoder.transformer.mlp.hidden.weight": "mtp.transformer.mlp.up_proj.weight",
        "output_layer.weight": "lm_head.weight",
    }
    assert hugging_face_names(pairs) == pairs
    prefixed = {f"model.{theirs}": ours for theirs, ours in pairs.items()}
    assert hugging_face_names(prefixed) == prefixed
