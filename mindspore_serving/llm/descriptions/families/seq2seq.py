"""Families of models with an encoder and a decoder: how each differs from the first, BART.

Tensors have BART's names: `RENAMED` says which parts of T5's names become which.
"""

from dataclasses import dataclass

LEARNED, SINUSOIDAL, RELATIVE = "learned", "sinusoidal", "relative"


@dataclass(frozen=True, slots=True)
class Seq2SeqFamily:
    """Differences of a family.

    `positions` are learned, sinusoidal or relative; the first is in row `offset` of its table, or
    in the one behind the padding token's number if it `follows_padding`.
    With `norms_first` a layer normalises what it reads, otherwise what it has added.  `is_t5` has
    the settings and the tensors of T5; with `separate_distances` each layer has a table.
    `scales_output` scales states before a tied output matrix.
    """

    positions: str = LEARNED
    offset: int = 0
    follows_padding: bool = False
    norms_first: bool = True
    is_t5: bool = False
    separate_distances: bool = False
    scales_output: bool = False


_T5 = Seq2SeqFamily(RELATIVE, is_t5=True, scales_output=True)
SEQ2SEQ: dict[str, Seq2SeqFamily] = {
    "BartForConditionalGeneration": Seq2SeqFamily(offset=2, norms_first=False),
    "M2M100ForConditionalGeneration": Seq2SeqFamily(SINUSOIDAL, follows_padding=True),
    "MarianMTModel": Seq2SeqFamily(SINUSOIDAL, norms_first=False),
    "MBartForConditionalGeneration": Seq2SeqFamily(offset=2),
    "MT5ForConditionalGeneration": Seq2SeqFamily(RELATIVE, is_t5=True),
    "PegasusForConditionalGeneration": Seq2SeqFamily(SINUSOIDAL),
    "T5ForConditionalGeneration": _T5,
    "UMT5ForConditionalGeneration": Seq2SeqFamily(
        RELATIVE, is_t5=True, separate_distances=True, scales_output=True
    ),
}
MULTILINGUAL = ("M2M100ForConditionalGeneration", "MBartForConditionalGeneration")
"""Families with tokens of languages in prompts and answers."""

RENAMED: tuple[tuple[str, str], ...] = (
    (r"^(shared|encoder|decoder)\.", r"model.\1."),
    (r"^(model\.\w+)\.block\.(\d+)\.layer\.\d\.", r"\1.layers.\2."),
    (r"\.final_layer_norm\.", ".layer_norm."),
    (r"\.SelfAttention\.", ".self_attn."),
    (r"\.EncDecAttention\.", ".encoder_attn."),
    (r"_attn\.([qkv])\.", r"_attn.\1_proj."),
    (r"_attn\.o\.", "_attn.out_proj."),
    (r"\.DenseReluDense\.wi(_0)?\.", ".fc1."),
    (r"\.DenseReluDense\.wi_1\.", ".fc_linear."),
    (r"\.DenseReluDense\.wo\.", ".fc2."),
)
"""Patterns in a name of T5 and what replaces each, in order.  The norm of a layer's part is named
by `NORMS`."""
NORMS = {
    ("encoder", 0): "self_attn_layer_norm",
    ("encoder", 1): "final_layer_norm",
    ("decoder", 0): "self_attn_layer_norm",
    ("decoder", 1): "encoder_attn_layer_norm",
    ("decoder", 2): "final_layer_norm",
}
