"""Pre-tokenizer rules of BPE, by their name in GGUF files: how text is split before merging.

A rule is a list of patterns that are applied one after another; each match becomes a piece. The
patterns are those of the models' tokenizer.json.
"""

from difflib import get_close_matches

from mindspore_serving.errors import StartError

_TAILS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

_GPT2 = [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"]
_DIGITS = [r"\p{N}", *_GPT2]
_LLAMA3 = [rf"{_TAILS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}{_REST}"]
_QWEN2 = [rf"{_TAILS}|{_BEFORE}\p{{L}}+|\p{{N}}{_REST}"]
_QWEN35 = [
    rf"{_TAILS}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
]
_SEED = [rf"{_TAILS}|{_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"]
_TEKKEN = [
    rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}{_SLASHED}",
]
_GPT4O = [
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_TAILS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_TAILS}?"
    rf"|\p{{N}}{{1,3}}{_SLASHED}",
]
_DEEPSEEK3 = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
_EAST_ASIAN = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}"]
# Letters with case, except those that the rule's list lacks.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}"
    r"\x{A78F}-\x{AB6F}\x{10500}-\x{105BC}\x{10D00}-\x{10DFF}\x{11900}-\x{1E8FF}]]"
)
_DEEPSEEK = [
    r"[\r\n]",
    rf"\s?{_CASED}+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    _EAST_ASIAN,
    r"\p{N}",
]
_FALCON = [r"[\p{P}$+<=>^`|~]+", *_GPT2, r"[0-9]+", r"[0-9]{3}"]
_BLOOM = [r" ?[^(\s|.,!?…。，、।۔،)]+"]
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI_UPPER, _KIMI_LOWER = f"{_UPPER[:-1]}{_NOT_HAN}", f"{_LOWER[:-1]}{_NOT_HAN}"
_KIMI = [
    rf"\p{{Han}}+|{_BEFORE}{_KIMI_UPPER}*{_KIMI_LOWER}+{_TAILS}?"
    rf"|{_BEFORE}{_KIMI_UPPER}+{_KIMI_LOWER}*{_TAILS}?|\p{{N}}{{1,3}}{_REST}",
]

_NAMES: list[tuple[list[str], str]] = [
    (
        _GPT2,
        "gpt-2 default phi-2 olmo mpt jais gigachat mellum a.x-4.0 trillion granite-docling"
        " exaone4",
    ),
    (_DIGITS, "smollm starcoder refact command-r codeshell exaone minerva-7b"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 pixtral midm-2.0 lfm2 dbrx smaug-bpe glm4"),
    (_LLAMA3, "chatglm-bpe falcon-h1"),
    ([r"\p{N}{1,3}", *_LLAMA3], "minicpm5"),
    (_QWEN2, "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan kormo solar-open grok-2"),
    (_QWEN35, "qwen35"),
    (_SEED, "seed-coder"),
    (_TEKKEN, "tekken"),
    (_GPT4O, "gpt-4o llama4 kanana2"),
    ([r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O], "tiny_aya"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (_DEEPSEEK, "deepseek-llm"),
    (_DEEPSEEK_CODER, "deepseek-coder"),
    (_FALCON, "falcon"),
    (_BLOOM, "bloom poro-chat gpt3-finnish"),
    ([*_BLOOM, r"\p{N}"], "viking"),
    (_KIMI, "kimi-k2"),
]
PATTERNS = {name: patterns for patterns, names in _NAMES for name in names.split()}
# The text begins with <s>, and a piece that is a token is not split, whatever the merges.
BEGINS_WITH_BOS = frozenset(
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1")
    + ("pixtral", "midm-2.0", "lfm2", "tekken")
)
IGNORES_MERGES = BEGINS_WITH_BOS | {"glm4", "chatglm-bpe", "minicpm5"}
# Tokens that begin the text, whatever the file says.
_SOP = ("[gMASK]", "<sop>")
BEGINNINGS = {"glm4": _SOP, "chatglm-bpe": _SOP, "chatglm-spm": ("[gMASK]", "sop")}
COMPOSES = frozenset(["qwen2", "qwen35", "deepseek-r1-qwen"])  # normalise to NFC first


def patterns_of(name: object, path: str) -> list[str]:
    """Return the patterns of the rule `name`.  Raises StartError, which begins with `path`."""
    patterns = PATTERNS.get(str(name))
    if patterns is None:
        near = get_close_matches(str(name), PATTERNS, 3, 0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise StartError(
            f"{path} has the pre-tokenizer rule {name!r} (tokenizer.ggml.pre), which is not "
            f"supported; {hint}Supported: {', '.join(PATTERNS)}"
        )
    return patterns
