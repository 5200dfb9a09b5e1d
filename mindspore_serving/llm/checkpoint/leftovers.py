"""Tensors of checkpoints that no pass reads: which of them may be left out, by their names.

Knows no architecture.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from mindspore_serving.llm.checkpoint.weights import FLOATS, Checkpoint


@dataclass(frozen=True, slots=True)
class Leftover:
    """Tensors that no pass reads: whose whole name is `pattern`, and why they are not for
    inference; an empty text for those that are read elsewhere.  With `dims` those with so many
    sizes alone.
    """

    pattern: str
    why: str
    dims: tuple[int, ...] = ()

    def has(self, name: str, shape: tuple[int, ...]) -> bool:
        is_such = not self.dims or len(shape) in self.dims or prod(shape) == 1
        return is_such and re.fullmatch(self.pattern, name) is not None


IMAGES = Leftover(
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector|embed_vision"
    r"|audio_tower|embed_audio)\..*",
    "of images or sounds",
)
LEFTOVERS = (
    IMAGES,
    Leftover(
        r"(.*\.)?(\w*inv_freq|freqs_cis|(cos|sin)_cached|rope\.freqs)",
        "rotary positions, which are computed",
    ),
    Leftover(r"(.*\.)?(position_ids|token_type_ids)", "numbers of positions"),
    Leftover(
        r"(.*\.)?(attn|attention|self_attention|crossattention)\.(bias|masked_bias|causal_mask)",
        "masks of attention", dims=(4,),
    ),
    Leftover(r"(model\.)?mtp(_\w+)?\..*", "layers that predict more tokens"),
    Leftover(
        r"(.*\.)?((in|out)put_(scale|zero_point|global_scale)|(k|v|q|kv|prob|activation)_scale"
        r"|scale_ub|(weight_)?g_idx|weight_shape)",
        "scales of inputs and caches, which are not rounded, and sizes",
    ),
    Leftover(
        r"(adam_[mv]|moments?|moment[12]|accum|accu_grads|exp_avg|exp_avg_sq|momentum)\..*",
        "of an optimizer",
    ),
    Leftover(r"\w+", "numbers about training", dims=(0,)),
    Leftover(r"(v_head|value_head)\..*", "a head of training"),
)  # fmt: skip
# Behind encoders; `engine.heads` reads those that are asked for.
HEADS = Leftover(
    r"(pooler|cls|lm_head|classifier|pre_classifier|head|decoder|qa_outputs|score|vocab_\w+)\..*",
    "",
)


def find_reasons(
    checkpoint: Checkpoint, names: Iterable[str], rows: Iterable[Leftover] = LEFTOVERS
) -> dict[str, str]:
    """Name -> why the tensor may be left out, of those of `names` that may."""
    known, found = tuple(rows), {}
    for name in names:
        shape = checkpoint.stored(name).shape
        row = next((row for row in known if row.has(name, shape)), None)
        if row is not None:
            found[name] = row.why
        elif _is_nothing(checkpoint, name):
            found[name] = "biases of zeros"
    return found


def _is_nothing(checkpoint: Checkpoint, name: str) -> bool:
    """Whether it is a bias that adds nothing, as some quantisers write for every matrix."""
    stored = checkpoint.stored(name)
    is_bias = name.endswith("bias") and len(stored.shape) == 1 and stored.dtype in FLOATS
    return is_bias and not checkpoint.f32(name).any()


def told(left_out: Mapping[str, str]) -> str:
    """Reason by reason, how many there are and the first of them; "" if all are read elsewhere."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out.items():
        if why:
            by_reason.setdefault(why, []).append(name)
    parts = (f"{len(some)} {why} ({some[0]!r})" for why, some in by_reason.items())
    return ", ".join(parts)
