"""Names of tools in prompts."""

import re

import pytest

from mindspore_serving.mcp.names import tool_name


def test_a_plain_name_stands_behind_its_server():
    assert tool_name("files", "read") == "files__read"


@pytest.mark.parametrize(
    "pair", [("a.b", "c"), ("a/b", "c"), ("a b", "c"), ("x" * 64, "y"), ("x" * 64, "z")]
)
def test_other_names_are_accepted_by_all_clients(pair):
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool_name(*pair))


def test_names_that_are_replaced_or_cut_remain_different():
    pairs = [
        ("a.b", "c"),
        ("a/b", "c"),
        ("a b", "c"),
        ("a_b", "c"),
        ("x" * 64, "y"),
        ("x" * 64, "z"),
    ]
    assert len({tool_name(*pair) for pair in pairs}) == len(pairs)
