"""The documentation site: it builds without a warning, and has every page and public name."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mindspore_serving import __version__
from tests.frontends.page.browser import CHROMIUM, Browser
from tests.rooms import TOP

ZERO_WIDTH_SPACE = "\u200b"  # between Chinese words
pytestmark = pytest.mark.slow


class Ids(HTMLParser):
    """The ids of a page's elements."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.update(value for name, value in attrs if name == "id" and value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "scripts/docs-site", "--site", str(directory)],
        cwd=TOP,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return directory


def test_the_first_page_leads_to_the_version(site: Path) -> None:
    assert f"url={__version__}/index.html" in (site / "index.html").read_text()
    (version,) = json.loads((site / "versions.json").read_text())
    assert version["version"] == __version__


def test_each_page_of_docs_is_on_the_site(site: Path) -> None:
    docs = TOP / "docs"
    pages = [path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")]
    assert [page for page in pages if not (site / __version__ / page).exists()] == []


def test_chinese_pages_have_their_titles_in_the_menu(site: Path) -> None:
    for source in (TOP / "docs" / "zh").glob("*.md"):
        title = next(line for line in source.read_text().splitlines() if line.startswith("# "))
        page = site / __version__ / "zh" / f"{source.stem}.html"
        assert f"<title>{title.removeprefix('# ')} - " in page.read_text(), source.name


@pytest.mark.parametrize("package", ["server", "client", "llm"])
def test_each_public_name_is_in_the_reference(site: Path, package: str) -> None:
    module = import_module(f"mindspore_serving.{package}")
    values = [getattr(module, name) for name in module.__all__]
    names = {f"{v.__module__}.{v.__qualname__}" for v in values if hasattr(v, "__qualname__")}
    assert names - Ids(site / __version__ / "api" / f"{package}.html").ids == set()


def test_options_that_a_table_adds_are_in_the_reference(site: Path) -> None:
    reference = (site / __version__ / "api" / "server.html").read_text()
    assert "max_batch_delay_ms" in reference


def test_the_search_index_has_english_and_chinese_pages(site: Path) -> None:
    for directory, text in (("", "servable_config.py"), ("zh", "部署")):
        index = json.loads(
            (site / __version__ / directory / "search" / "search_index.json").read_text()
        )
        texts = [page["text"].replace(ZERO_WIDTH_SPACE, "") for page in index["docs"]]
        assert any(text in page for page in texts)


@pytest.mark.parametrize(("page", "word"), [("index.html", "batching"), ("zh/index.html", "部署")])
def test_pages_opened_as_files_can_be_searched(site: Path, page: str, word: str) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        browser.look(1280, 900)
        browser.open((site / __version__ / page).as_uri())
        browser.until("document.querySelector('.md-search').getBoundingClientRect().width")
        browser.evaluate("document.querySelector('.md-search__input').focus()")
        browser.type(word)
        browser.until("document.querySelector('.md-search-result__item a')")
