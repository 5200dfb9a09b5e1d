"""Chinese pages are as new as their English sources, or say that they are not; code is the same."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.rooms import TOP

PAGES = ["README_CN.md", *(str(p.relative_to(TOP)) for p in (TOP / "docs" / "zh").glob("*.md"))]
CODE = re.compile(r"^```(?:python|console|json|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script, for a repository with one page and its translation."""
    loader = SourceFileLoader("translations", str(TOP / "scripts" / "translations"))
    module = module_from_spec(spec_from_loader("translations", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# Page\n\nText.\n")
    header = f"<!-- translated from page.md {'0' * 16} -->\n"
    (tmp_path / "page_zh.md").write_text(f"{header}# 页面\n\n正文。\n")
    return module


def test_translated_pages_are_as_new_as_their_sources() -> None:
    listed = subprocess.run(
        [sys.executable, "scripts/translations"], cwd=TOP, capture_output=True, text=True
    )
    assert listed.returncode == 0, f"{listed.stdout}{listed.stderr} (scripts/translations --help)"


@pytest.mark.parametrize("page", PAGES)
def test_translated_pages_have_the_code_of_their_sources(page: str) -> None:
    text = (TOP / page).read_text()
    match = re.match(r"<!-- translated from (\S+) (\w+) -->\n", text)
    assert match, page
    if match.group(2) != "outdated":
        blocks = [_uncommented(code) for code in CODE.findall(text)]
        sources = [_uncommented(code) for code in CODE.findall((TOP / match.group(1)).read_text())]
        assert blocks == sources


def _uncommented(code: str) -> str:
    return re.sub(r"\s*#.*", "", code)


def test_a_page_whose_source_changed_is_older(translations: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page_zh.md"
    translations.mark(page, is_outdated=False)
    assert translations.state_of(page) == "current"
    (tmp_path / "page.md").write_text("# Page\n\nOther text.\n")
    assert translations.state_of(page) == "older than its source"


def test_an_outdated_page_has_a_notice_until_accepted(
    translations: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "page_zh.md"
    translations.mark(page, is_outdated=True)
    assert translations.state_of(page) == "outdated"
    assert "# 页面\n\n> **注意**" in page.read_text()
    translations.mark(page, is_outdated=False)
    assert page.read_text().endswith("# 页面\n\n正文。\n")
