"""Names of tensors in checkpoints of MindFormers, MCore and MindNLP, as Hugging Face's.

    MindFormers   the Llama family, `model.layers.0.attention.wq.weight`
    MCore         the models of MindFormers' newer core, `decoder.layers.0.mlp.linear_fc2.weight`
    MindNLP       MindSpore's own layers, whose parameters end in `gamma`, `beta`, ...

Knows no shape.
"""

from collections.abc import Collection, Iterable

from mindspore_serving.errors import StartError

MINDFORMERS_EMBEDDING = "model.tok_embeddings.embedding_weight"  # no other library has this name
MINDFORMERS = (
    ("model.tok_embeddings.embedding_weight", "model.embed_tokens.weight"),
    ("model.norm_out.", "model.norm."),
    (".attention.wq.", ".self_attn.q_proj."),
    (".attention.wk.", ".self_attn.k_proj."),
    (".attention.wv.", ".self_attn.v_proj."),
    (".attention.wo.", ".self_attn.o_proj."),
    (".attention.w_qkv.", ".self_attn.linear_qkv."),
    (".attention_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
    (".feed_forward.w_gate_hidden.", ".mlp.linear_fc1."),
)
KEY_VALUE = ".attention.wk_v."  # only TeleChat2 has such a tensor
TELECHAT = (
    ("model.tok_embeddings.embedding_weight", "transformer.word_embeddings.weight"),
    ("model.norm_out.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    (KEY_VALUE, ".self_attention.key_value."),
    (".attention.wq.", ".self_attention.query."),
    (".attention.wo.", ".self_attention.dense."),
    *MINDFORMERS,
)
MCORE_EMBEDDING = "embedding.word_embeddings.weight"
MCORE_PREFIX = "model."  # of networks that hold the model as a part
LATENT = ".linear_q_down_proj."  # a model with latent attention has such a tensor
MCORE = (
    ("embedding.word_embeddings.", "model.embed_tokens."),
    ("output_layer.", "lm_head."),
    ("decoder.final_layernorm.", "model.norm."),
    *((f"decoder.{part}.", f"mtp.{part}.") for part in ("enorm", "hnorm", "eh_proj")),
    ("decoder.transformer.", "mtp.transformer."),
    ("decoder.layers.", "model.layers."),
    (".self_attention.linear_q_down_proj.", ".self_attn.q_a_proj."),
    (".self_attention.linear_q_up_proj.", ".self_attn.q_b_proj."),
    (".self_attention.linear_kv_down_proj.", ".self_attn.kv_a_proj_with_mqa."),
    (".self_attention.linear_kv_up_proj.", ".self_attn.kv_b_proj."),
    (".self_attention.kv_layernorm.", ".self_attn.kv_a_layernorm."),
    (".self_attention.q_layernorm.", ".self_attn.q_norm."),
    (".self_attention.k_layernorm.", ".self_attn.k_norm."),
    (".self_attention.linear_qkv.", ".self_attn.linear_qkv."),
    (".self_attention.linear_q.", ".self_attn.q_proj."),
    (".self_attention.linear_k.", ".self_attn.k_proj."),
    (".self_attention.linear_v.", ".self_attn.v_proj."),
    (".self_attention.linear_proj.", ".self_attn.o_proj."),
    (".pre_mlp_layernorm.", ".post_attention_layernorm."),
    (".router.expert_bias", ".gate.e_score_correction_bias"),
    (".router.weight.weight", ".gate.weight"),
    (".router.weight", ".gate.weight"),
    (".gating.", ".gate_proj."),
    (".hidden.", ".up_proj."),
    (".linear_fc2.", ".down_proj."),
)
# Parameters of mindspore.nn.Embedding and LayerNorm, of which MindNLP builds its models.
LEAVES = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}


def hugging_face_names(names: Iterable[str]) -> dict[str, str]:
    """Map names of MindFormers, MCore, MindNLP or Hugging Face to those of Hugging Face.

    Fused matrices are named `self_attn.linear_qkv` and `mlp.linear_fc1`, which Hugging Face does
    not have. Raises StartError for two names that would become the same.
    """
    names = list(names)
    if MINDFORMERS_EMBEDDING in names:
        table = TELECHAT if any(KEY_VALUE in name for name in names) else MINDFORMERS
        renamed = {name: _replaced(name, table) for name in names}
    elif _mcore_prefix(names) is not None:
        renamed = _mcore(names)
    else:
        renamed = {name: _mindnlp(name) for name in names}
    origins: dict[str, str] = {}
    for name, new in renamed.items():
        if new in origins:
            raise StartError(f"tensors {origins[new]!r} and {name!r} would both be named {new!r}")
        origins[new] = name
    return renamed


def has_mindspore_names(names: Collection[str]) -> bool:
    """Return whether the names are those of MindFormers, MCore or MindNLP."""
    is_mindformers = MINDFORMERS_EMBEDDING in names or _mcore_prefix(names) is not None
    return is_mindformers or any(name.endswith(".embedding_table") for name in names)


def _mcore_prefix(names: Collection[str]) -> str | None:
    """Return what precedes MCore's names; None if these are other names."""
    return next(
        (prefix for prefix in ("", MCORE_PREFIX) if prefix + MCORE_EMBEDDING in names), None
    )


def _mcore(names: list[str]) -> dict[str, str]:
    table = MCORE
    if any(LATENT in name for name in names):
        table = ((".self_attention.q_layernorm.", ".self_attn.q_a_layernorm."), *MCORE)
    prefix = _mcore_prefix(names) or ""
    return {name: _replaced(name.removeprefix(prefix), table) for name in names}


def _replaced(name: str, table: Iterable[tuple[str, str]]) -> str:
    for theirs, ours in table:
        name = name.replace(theirs, ours)
    return name


def _mindnlp(name: str) -> str:
    stem, dot, leaf = name.rpartition(".")
    return f"{stem}{dot}{LEAVES.get(leaf, leaf)}" if dot else name
