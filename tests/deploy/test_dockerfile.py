"""The reader of Dockerfiles that the rehearsal uses."""

from pathlib import Path

import pytest

from tests.deploy.dockerfile import Ignored, expand, parse


def test_lines_are_joined_and_comments_left_out():
    found = parse("# first\nRUN a \\\n # between\n && b\n\nUSER 1:1\n")
    assert [(one.name, one.text) for one in found] == [("RUN", "a  && b"), ("USER", "1:1")]


def test_flags_are_separate_and_json_is_parsed():
    copy, check = parse('COPY --from=build /a /b\nENTRYPOINT ["x", "a b"]\n')
    assert (copy.flags, copy.words()) == ({"from": "build"}, ["/a", "/b"])
    assert check.words() == ["x", "a b"]


def test_a_here_document_is_refused_rather_than_read_wrongly():
    with pytest.raises(ValueError, match="here-document"):
        parse("RUN <<EOF\nls\nEOF\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$A/b", "1/b"), ("${A}", "1"), ("${B:-x}", "x"), ("[${A:+y}]", "[y]"), ("[${B:+y}]", "[]")],
)
def test_variables_are_filled_in(text, expected):
    assert expand(text, {"A": "1"}) == expected


def test_of_the_patterns_that_match_the_last_decides():
    is_ignored = Ignored("# all\n*\n!kept\n**/*.pyc\n")
    answers = {name: is_ignored(Path(name)) for name in ("other", "kept/a/b", "kept/a/b.pyc")}
    assert answers == {"other": True, "kept/a/b": False, "kept/a/b.pyc": True}
