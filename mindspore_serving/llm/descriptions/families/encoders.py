"""Encoders by the prefix of their architectures' names: BERT's family, ModernBERT, EmbeddingGemma.

Every token attends to the whole text, or in some layers to nearby tokens on both sides. A row names
only differences from Llama. Knows no runtime.
"""

from dataclasses import replace
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import LAYER, Architecture, Config, Names
from mindspore_serving.llm.descriptions.config_types import number, size
from mindspore_serving.llm.descriptions.families.gemma import GEMMA3
from mindspore_serving.llm.descriptions.layer_kinds import FULL, SLIDING

NUM_BUCKETS = 32  # of MPNet's relative positions
PREFIXES = ("bert.", "roberta.", "mpnet.", "distilbert.", "model.")  # in files with a head


def _bert(config: Config) -> Config:
    hidden, heads = (
        size(config, "hidden_size", "dim"),
        size(config, "num_attention_heads", "n_heads"),
    )
    if hidden % heads:
        raise StartError(
            f"config.json has hidden_size {hidden}, expected a multiple of "
            f"num_attention_heads={heads}"
        )
    layers = size(config, "num_hidden_layers", "n_layers")
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}


def _roberta(config: Config) -> Config:
    longest = size(config, "max_position_embeddings") - rows_before_first(config)
    return {**_bert(config), "max_position_embeddings": longest}


def rows_before_first(config: Config) -> int:
    """Return the rows of RoBERTa's position table before that of the first token.

    They end with that of the padding token.
    """
    pad_id = config.get("pad_token_id", 1)
    if not isinstance(pad_id, int) or pad_id < 0:
        raise StartError(f"config.json has pad_token_id {pad_id!r}, expected an int of 0 or more")
    return 1 + pad_id


def _modern_bert(config: Config) -> Config:
    every = size(config, "global_attn_every_n_layers", default=3)
    count = size(config, "num_hidden_layers")
    kinds = config.get("layer_types") or [SLIDING if i % every else FULL for i in range(count)]
    return {
        **_bert(config),
        "layer_types": kinds,
        "sliding_window": size(config, "local_attention", default=128) // 2 + 1,
        "rope_theta": config.get("global_rope_theta") or 160_000.0,
        "rope_local_base_freq": config.get("local_rope_theta") or 10_000.0,
        "layer_norm_epsilon": number(config, "norm_eps"),
    }


def _modern_bert_form(architecture: Architecture, config: Config) -> Architecture:
    return replace(architecture, norm_bias=bool(config.get("norm_bias")))


def _gemma(config: Config) -> Config:
    assert GEMMA3.read is not None
    window = size(config, "sliding_window") // 2 + 1  # half of it to each side
    return {**GEMMA3.read(config), "sliding_window": window}


_BIASED: dict[str, Any] = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
BERT = Architecture(
    names=Names(
        embedding="embeddings.word_embeddings", positions="embeddings.position_embeddings",
        types="embeddings.token_type_embeddings", embedding_norm="embeddings.LayerNorm", norm="",
        layers="encoder.layer", attention_norm="",
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
        output="attention.output.dense", after_attention="attention.output.LayerNorm",
        mlp_norm="", gate_up=("intermediate.dense",), down="output.dense",
        after_mlp="output.LayerNorm",
    ),
    norm=LAYER, norm_bias=True, **_BIASED, gated=False, rope="", post_norm=True, read=_bert,
    fixed={"position_embedding_type": ("absolute",), "is_decoder": (False,),
           "add_cross_attention": (False,)},
    defaults={"hidden_act": "gelu"},
)  # fmt: skip
ROBERTA = replace(BERT, read=_roberta, skips_positions=True)
ENCODERS: dict[str, Architecture] = {
    "Bert": BERT,
    "Roberta": ROBERTA,
    "XLMRoberta": ROBERTA,
    "Camembert": ROBERTA,
    "DistilBert": replace(
        BERT,
        names=replace(
            BERT.names, layers="transformer.layer", types="",
            qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            output="attention.out_lin", after_attention="sa_layer_norm", gate_up=("ffn.lin1",),
            down="ffn.lin2", after_mlp="output_layer_norm",
        ),
        defaults={"activation": "gelu", "layer_norm_eps": 1e-12},
        unused=("hidden_dim", "sinusoidal_pos_embds"),
    ),
    "MPNet": replace(
        ROBERTA,
        names=replace(
            BERT.names, types="", distances="encoder.relative_attention_bias",
            qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            output="attention.attn.o", after_attention="attention.LayerNorm",
        ),
        fixed={**BERT.fixed, "relative_attention_num_buckets": (NUM_BUCKETS,)},
    ),
    "ModernBert": Architecture(
        names=Names(
            embedding="embeddings.tok_embeddings", embedding_norm="embeddings.norm",
            norm="final_norm", layers="layers", attention_norm="attn_norm", qkv=("attn.Wqkv",),
            output="attn.Wo", mlp_norm="mlp_norm", gate_up=("mlp.Wi",), down="mlp.Wo",
        ),
        norm=LAYER, qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
        read=_modern_bert, variant=_modern_bert_form, begins_normed=True, follows=("layer_types",),
        defaults={"hidden_activation": "gelu", "norm_eps": 1e-5},
    ),
    "Gemma3Text": replace(
        GEMMA3,
        names=replace(GEMMA3.names, embedding="embed_tokens", norm="norm", layers="layers"),
        read=_gemma,
        fixed={**GEMMA3.fixed, "use_bidirectional_attention": (True,)},
    ),
}  # fmt: skip
