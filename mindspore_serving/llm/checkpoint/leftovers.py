"""Unread tensors of checkpoints: those that may be ignored, by their names.

Knows no architecture.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from mindspore_serving.llm.checkpoint.weights import FLOATS, Checkpoint


@dataclass(frozen=True, slots=True)
class Leftover:
    """Pattern of tensor names that no pass reads.

    `pattern` matches the whole name, and `reason` says why the tensors are not for inference ("" if
    they are read elsewhere). With `dims` only tensors with that many dimensions match.
    """

    pattern: str
    reason: str
    dims: tuple[int, ...] = ()

    def has(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether the tensor matches."""
        is_size = not self.dims or len(shape) in self.dims or prod(shape) == 1
        return is_size and re.fullmatch(self.pattern, name) is not None


IMAGES = Leftover(
    r"((model|thinker)\.)?((vision_tower|vision_model|visual|multi_modal_projector|connector"
    r"|embed_vision|merger)\..*|image_newline)",
    "of images or sounds",
)
SOUNDS = Leftover(
    r"((model|thinker)\.)?(audio_tower|embed_audio|multi_modal_projector)\..*", IMAGES.reason
)
LEFTOVERS = (
    IMAGES,
    SOUNDS,
    Leftover(r"(talker|token2wav|code2wav)\..*", "of the part for speech: answers are texts"),
    Leftover(
        r"(.*\.)?(\w*inv_freq|freqs_cis|(cos|sin)_cached|rope\.freqs)",
        "rotary positions, which are computed",
    ),
    Leftover(r"(.*\.)?(position_ids|token_type_ids)", "indices of positions"),
    Leftover(
        r"(.*\.)?(attn|attention|self_attention|crossattention)\.(bias|masked_bias|causal_mask)",
        "masks of attention", dims=(4,),
    ),
    Leftover(r".*norm\.module\.(weight|bias)", "copies of norms"),
    Leftover(r"(model\.)?mtp(_\w+)?\..*", "layers that predict more tokens"),
    Leftover(
        r"(.*\.)?((in|out)put_(scale|zero_point|global_scale)|(k|v|q|kv|prob|activation)_scale"
        r"|kv_cache_(scale|offset)|(key|value)_(t_)?(scale|zp|offset)"
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
# Heads of encoders; `engine.heads` reads the requested ones.
HEADS = Leftover(
    r"(pooler|cls|lm_head|classifier|pre_classifier|head|decoder|qa_outputs|score|vocab_\w+)\..*",
    "",
)


def find_reasons(
    checkpoint: Checkpoint, names: Iterable[str], rows: Iterable[Leftover] = LEFTOVERS
) -> dict[str, str]:
    """Return why tensors may be ignored, for those of `names` that may."""
    known, reasons = tuple(rows), {}
    for name in names:
        shape = checkpoint.stored(name).shape
        row = next((row for row in known if row.has(name, shape)), None)
        if row is not None:
            reasons[name] = row.reason
        elif _is_zero_bias(checkpoint, name):
            reasons[name] = "biases of zeros"
    return reasons


def _is_zero_bias(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether it is a bias of zeros, which some quantisers write for every matrix."""
    stored = checkpoint.stored(name)
    is_bias = name.endswith("bias") and len(stored.shape) == 1 and stored.dtype in FLOATS
    return is_bias and not checkpoint.f32(name).any()


def summarize(ignored: Mapping[str, str]) -> str:
    """Summarize each reason with the number of tensors and the first; "" if all are read."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in ignored.items():
        if reason:
            by_reason.setdefault(reason, []).append(name)
    parts = (f"{len(names)} {why} ({names[0]!r})" for why, names in by_reason.items())
    return ", ".join(parts)
