"""What MindSpore's libraries call the tensors of a language model -> what Hugging Face calls them.

Hugging Face's names stay as they are.  Knows names alone: MindFormers' Llama family (Llama, Qwen2,
Mistral, InternLM as MindFormers converts them) keeps Hugging Face's layout of every matrix.
"""

from collections.abc import Iterable

from mindspore_serving.errors import StartError

MINDFORMERS_EMBEDDING = "model.tok_embeddings.embedding_weight"  # no other library has this name
MINDFORMERS_FUSED = (".attention.w_qkv.", ".feed_forward.w_gate_hidden.")
MINDFORMERS = (
    ("model.tok_embeddings.embedding_weight", "model.embed_tokens.weight"),
    ("model.norm_out.", "model.norm."),
    (".attention.wq.", ".self_attn.q_proj."),
    (".attention.wk.", ".self_attn.k_proj."),
    (".attention.wv.", ".self_attn.v_proj."),
    (".attention.wo.", ".self_attn.o_proj."),
    (".attention_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
)
# The parameters of mindspore.nn.Embedding and LayerNorm, which MindNLP's models are built of.
LEAVES = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}


def hugging_face_names(names: Iterable[str]) -> dict[str, str]:
    """Name in the files -> Hugging Face's name, for all `names` of a checkpoint.

    Raises StartError: matrices that MindFormers has fused, two names that become one.
    """
    names = list(names)
    is_mindformers = MINDFORMERS_EMBEDDING in names
    renamed = {name: _mindformers(name) if is_mindformers else _layers(name) for name in names}
    origins: dict[str, str] = {}
    for name, new in renamed.items():
        if new in origins:
            raise StartError(f"tensors {origins[new]!r} and {name!r} both are {new!r}")
        origins[new] = name
    return renamed


def _mindformers(name: str) -> str:
    if any(part in name for part in MINDFORMERS_FUSED):
        raise StartError(
            f"tensor {name!r} is fused, in an order that depends on how it was trained; convert "
            "the checkpoint with qkv_concat=False first"
        )
    for theirs, ours in MINDFORMERS:
        name = name.replace(theirs, ours)
    return name


def _layers(name: str) -> str:
    stem, dot, leaf = name.rpartition(".")
    return f"{stem}{dot}{LEAVES.get(leaf, leaf)}" if dot else name
