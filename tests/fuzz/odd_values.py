"""Values and texts that are likely to be handled wrongly."""

from random import Random
from typing import Any

_NUMBERS = (
    *(0, -1, 1, 2, 127, 128, 255, 256, 1000, 65535, 65536, 10**6),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30),
    *(0.5, -0.0, 1e-308, 5e-324, 1e308, -1e308, 1.0000001, 3.4e38, 1e-7),
)
_LITERALS = (  # that a JSON library does not write
    *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"-0", b"01", b"1.", b".5", b"+1"),
    *(b"0x10", b"1e", b"9" * 400, b"0." + b"0" * 400 + b"1", b"1e-9999999999", b"tru", b"None"),
    *(
        b"'a'",
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\u0000"',
        b'"\\x"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
    ),
    *(b'"a', b"[1,]", b'{"a":1,}', b"{1:2}", b"//a\n1", b"", b" ", b"\x00", b"\xef\xbb\xbf1"),
)
_TEXTS = (
    *(
        "",
        " ",
        "\n",
        "\r\n",
        "\0",
        "\x7f",
        "\x1b[31m",
        "a\0b",
        "\ufeff",
        "\u200b",
        "\u202e",
        "\u2028",
    ),
    *(
        "\U0001f469\u200d\U0001f52c",
        "\U0010ffff",
        "\uffff",
        "e\u0301" * 50,
        "\ufdfa" * 20,
        "\u0130",
    ),
    *("%s%n%d", "{}", "{0}", "{{7*7}}", "{% raw %}", "${a}", "../../etc/passwd", "a" * 300),
    *("<|endoftext|>", "<s>", "</s>", "<|im_start|>", "[INST]", "<think>", "<tool_call>", "null"),
    *("true", "1", "-1", "1e5", "NaN", "@generate", "@tokenize", "__class__", "$ref", "#/", "*"),
    *("auto", "none", "required", "any", "text", "json", "regex", "function", "system", "tool"),
    *("(", "[", "a{9}", "a{99,}", "(a|b)*c", "\\", "(?<=a)b", "\\p{L}+", "start: ", "start: start"),
)


def number(random: Random) -> Any:
    return random.choice(_NUMBERS)


def literal(random: Random) -> bytes:
    """JSON that is none, or is hard to read."""
    return random.choice(_LITERALS)


def text(random: Random) -> str:
    kind = random.random()
    if kind < 0.8:
        return random.choice(_TEXTS)
    if kind < 0.98:
        count = random.randrange(1, 12)
        return "".join(chr(_code_point(random)) for _ in range(count))
    return random.choice(("a", "sea ", "\u00e9", "\U0001f600")) * random.choice((1000, 20_000))


def _code_point(random: Random) -> int:
    point = random.choice(
        (random.randrange(128), random.randrange(0x3000), random.randrange(0x110000))
    )
    return point if not 0xD800 <= point < 0xE000 else 0xFFFD


def value(random: Random) -> Any:
    """Anything that JSON has."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice((None, True, False, [], {}, [[]], [None], {"": None}))
    if kind < 5:
        return number(random)
    if kind < 7:
        return text(random)
    return _large(random)


def _large(random: Random) -> Any:
    """Long, wide or deep."""
    kind = random.randrange(5)
    if kind == 0:
        return [number(random)] * random.choice((5, 65, 130, 1000, 5000))
    if kind == 1:
        return [text(random)[:50]] * random.choice((5, 65, 130, 1000))
    if kind == 2:
        return {f"k{n}": n for n in range(random.choice((5, 200, 2000)))}
    return _deep(random.choice((10, 60, 90)), kind == 3)


def _deep(levels: int, is_list: bool) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found] if is_list else {"a": found}
    return found
