"""Reasons why an architecture is not supported, and supported ones with similar names.

For the error that refuses a model; decides nothing else.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches

from mindspore_serving.llm.descriptions.families.seq2seq import SEQ2SEQ

_STATE = "whose state is not supported"
# Pattern of the beginning of a name -> reason; the first match counts.
REASONS: tuple[tuple[str, str], ...] = (
    (r"(KimiLinear|OlmoHybrid|MiniMaxForCausalLM)",
     f"it has layers of linear attention, {_STATE}"),
    (r"(Mamba|FalconMamba|Jamba|Zamba|Plamo)",
     "it has Mamba layers of a kind that is not supported; those of Mamba-2 are"),
    (r"(RecurrentGemma|Rwkv|xLSTM)", f"it has recurrent layers, {_STATE}"),
    (r"GLMModel", "it is the first GLM; ChatGLMModel and GlmForCausalLM are later ones"),
    (r"(T5|MT5|UMT5|Bart|MBart|Pegasus|Marian|BigBird|Led|LongT5|ProphetNet|M2M|Whisper|Blenderbot)",
     f"it has an encoder and a decoder; of such models {', '.join(SEQ2SEQ)} generate"),
    (r"InternVLChat", "it needs its own code, unlike its checkpoint for transformers (-hf)"),
    (r".*(VL|Vision|Llava|Image|Audio|Omni|Janus|Florence|Idefics|SmolVLM|Pixtral)",
     "it is for images or audio"),
    (r"PanguProMoEV2", "its attention has keys that belong to no token (sinks)"),
    (r"PanguProMoE", "it takes one expert from each group, which is not supported"),
    (r"TeleChat3|Telechat3", "it is later than TeleChat2, and has other tensors"),
    (r"DeepseekV32", "it chooses keys by an index (sparse attention), which is not supported"),
)  # fmt: skip
_HEAD = re.compile(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$")
_VERSION = re.compile(r"[\d_.]*(Moe|MoE|Next|H)?$")


def explain_unsupported(name: str, known: Collection[str]) -> str:
    """Return why `name` is refused, and similar names in `known`."""
    reason = next((why for start, why in REASONS if re.match(start, name)), "")
    similar = nearest(name, known)
    parts = [reason or "it is not supported"]
    if similar:
        parts.append(f"similar are {' and '.join(similar)}")
    return "; ".join(parts)


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Return at most three names of `known` that are of the same family, or have a similar name."""
    stem = _HEAD.sub("", name)
    stems = {_HEAD.sub("", candidate): candidate for candidate in known}
    family = _VERSION.sub("", stem).lower()
    same = [full for short, full in stems.items() if family and short.lower().startswith(family)]
    close_matches = [stems[short] for short in get_close_matches(stem, stems, 3, 0.7)]
    close_matches += get_close_matches(name, known, 1, 0.9)  # a typing error
    return list(
        dict.fromkeys([*(full for full in close_matches if full in same), *same, *close_matches])
    )[:3]
