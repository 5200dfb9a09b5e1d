"""Grammars of llama.cpp (GBNF) as Lark, by llguidance's translator.

Texts and classes of characters are written anew for it, as it takes fewer escapes than llama.cpp
and gives some characters another meaning.  Knows neither a tokenizer nor a compiler.
"""

import re

from mindspore_serving.errors import InvalidInputs

MAX_CHARS = 64 * 1024
MAX_RULES = 256  # the translator's time grows with their square
_RULE = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[\\"\[\]nrt])'
_CHAR = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
# The end of a piece is optional, so that the scan stays linear.
_PIECES = re.compile(
    rf"""
    \#[^\n]* | (?P<any>\.)
    | "(?P<text>(?:{_ESCAPE}|[^"\\])*)(?P<quote>")?
    | \[(?P<set>(?:{_ESCAPE}|[^\]\\])*)(?P<bracket>\])?
    """,
    re.VERBOSE,
)
_ANY = "[\\x00-\U0010ffff]"
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def to_lark(source: str) -> str:
    """Return a GBNF grammar as Lark.

    Raises InvalidInputs with the line of an error and what is expected there.
    """
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    if len(source) > MAX_CHARS:
        problem = f"has {len(source)} characters, expected at most {MAX_CHARS}"
        raise InvalidInputs(f"the gbnf {problem}")
    num_rules = len(_RULE.findall(source))
    if num_rules > MAX_RULES:
        raise InvalidInputs(f"the gbnf has {num_rules} rules, expected at most {MAX_RULES}")
    try:
        return str(gbnf_to_lark(_PIECES.sub(_rewrite, source)))
    except GbnfToLarkError as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    except IndexError:
        problem = "it ends within an escape, expected a character behind the backslash"
    except Exception as error:  # the translator has no class for errors of names
        problem = f"{error}{_line_of(str(error), source)}"
    raise InvalidInputs(f"the gbnf cannot be used: {problem}")


def _line_of(problem: str, source: str) -> str:
    """Return the line of the name that `problem` quotes, as the end of a message."""
    if "root" in problem:
        return ", expected a rule `root ::= ...`"
    if "already exists" in problem:
        return ": expected names that differ in more than case, - and _, and none called start"
    name = re.search(r"'([\w-]+)'", problem)
    quoted = name and re.search(rf"(?<![\w-]){name[1]}(?![\w-])", source)
    if not quoted:
        return ""
    line = source.count("\n", 0, quoted.start()) + 1
    return f" at line {line}, expected the name of a rule of the grammar"


def _rewrite(match: re.Match[str]) -> str:
    if match["any"]:
        return _ANY
    if match["quote"]:
        chars = map(_decode, _CHAR.findall(match["text"]))
        return f'"{"".join(map(_in_text, chars))}"'
    if match["bracket"]:
        return f"[{_rewrite_set(match['set'])}]"
    return match[0]  # a comment, or a text or class without an end


def _rewrite_set(inside: str) -> str:
    """Return the characters and ranges of a class, with every sign as a number."""
    negation = "^" if inside.startswith("^") else ""
    chars = _CHAR.findall(inside[len(negation) :])
    written, index = [negation], 0
    while index < len(chars):
        end = index + 2 if chars[index + 1 : index + 2] == ["-"] and index + 2 < len(chars) else 0
        written.append(_in_set(_decode(chars[index])))
        if end:
            written.append("-" + _in_set(_decode(chars[end])))
        index = (end or index) + 1
    return "".join(written)


def _decode(char: str) -> str:
    """Return the character that `char`, maybe an escape, stands for."""
    if len(char) == 1:
        return char
    if len(char) == 2:
        return _LETTERS.get(char[1], char[1])
    number = int(char[2:], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise InvalidInputs(f"the gbnf cannot be used: {char} is no character")
    return chr(number)


def _in_text(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char >= " " and char != "\x7f" else f"\\x{ord(char):02x}"


def _in_set(char: str) -> str:
    return char if char.isalnum() or char > "\x7f" else f"\\x{ord(char):02x}"
