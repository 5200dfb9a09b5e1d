"""The code of the documentation is that of its languages, and its links lead somewhere; that of the
READMEs runs as shown.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT
from tests.pages import FENCE, LINK, PAGES, blocks, file_name, follow


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_examples_of_a_page_work_as_shown(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_python(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text())
    for target, _ in LINK.findall(text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_blocks_and_links_of_pages_are_found() -> None:
    """Without which the tests above would find nothing to be wrong."""
    text = (ROOT / "README.md").read_text()
    assert {"python", "console"} <= {block.language for block in blocks("README.md")}
    assert "docs/clients.md" in {target for target, _ in LINK.findall(text)}


def test_both_readmes_show_the_same_code() -> None:
    without_comments = [
        [(b.language, re.sub(r"#.*", "#", b.text)) for b in blocks(page)]
        for page in ("README.md", "README_CN.md")
    ]
    assert without_comments[0] == without_comments[1]


def test_the_chinese_readme_has_the_same_sections_rows_and_links() -> None:
    shapes, links = [], []
    for page in ("README.md", "README_CN.md"):
        text = (ROOT / page).read_text()
        shapes.append(re.findall(r"(?m)^(#+|[|-]) ", text))
        targets = {link.replace("docs/zh/", "docs/") for link, _ in LINK.findall(text)}
        links.append(targets - {"README.md", "README_CN.md"})
    assert shapes[0] == shapes[1]
    assert links[0] == links[1]


def test_the_readmes_run_something() -> None:
    """The tests above would pass on a page without blocks."""
    assert [b.language for b in blocks("README.md")].count("console") == 3
    assert sum(1 for b in blocks("README.md") if file_name(b)) == 4
