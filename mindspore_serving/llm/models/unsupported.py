"""What an architecture has that no decoder here computes, and which ones near it are.

For the message of a model that is refused.  Decides nothing else.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches

_STATE = "whose state is not computed"
# What the name begins with -> why; the first that matches counts.
REASONS: tuple[tuple[str, str], ...] = (
    (r"(KimiLinear|OlmoHybrid|MiniMaxForCausalLM)",
     f"it has layers of linear attention, {_STATE}"),
    (r"(Mamba|FalconMamba|Jamba|Zamba|Plamo)",
     "it has Mamba layers in a form that is not computed; those of Mamba-2 are"),
    (r"(RecurrentGemma|Rwkv|xLSTM)", f"it has recurrent layers, {_STATE}"),
    (r"GLMModel", "it is the first form of GLM; ChatGLMModel and GlmForCausalLM are later ones"),
    (r"(T5|MT5|UMT5|Bart|MBart|Pegasus|Marian|BigBird|Led|LongT5|ProphetNet|M2M|Whisper|Blenderbot)",
     "it has an encoder and a decoder"),
    (r".*(VL|Vision|Llava|Image|Audio|Omni|Janus|Florence|Idefics|SmolVLM|Pixtral)",
     "it is for images or sounds"),
    (r"DeepseekV32", "it chooses keys by an index, which is not computed"),
)  # fmt: skip
_HEAD = re.compile(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$")
_VERSION = re.compile(r"[\d_.]*(Moe|MoE|Next|H)?$")


def explained(name: str, known: Collection[str]) -> str:
    """Why `name` is refused, and which of `known` are near it."""
    reason = next((why for start, why in REASONS if re.match(start, name)), "")
    near = nearest(name, known)
    words = [reason or "it is not served"]
    if near:
        words.append(f"near it are {' and '.join(near)}")
    return "; ".join(words)


def nearest(name: str, known: Collection[str]) -> list[str]:
    """At most three of `known` that are of the same family, or named alike."""
    stem = _HEAD.sub("", name)
    stems = {_HEAD.sub("", one): one for one in known}
    family = _VERSION.sub("", stem).lower()
    same = [one for own, one in stems.items() if family and own.lower().startswith(family)]
    alike = [stems[own] for own in get_close_matches(stem, stems, 3, 0.7)]
    alike += get_close_matches(name, known, 1, 0.9)  # a slip of the pen
    return list(dict.fromkeys([*(one for one in alike if one in same), *same, *alike]))[:3]
