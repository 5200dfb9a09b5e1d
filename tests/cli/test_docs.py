"""`mindspore-serving docs`: the pages of documentation, of a checkout or an installation."""

from importlib.metadata import PackagePath
from pathlib import Path

import pytest

import mindspore_serving
from mindspore_serving.cli import docs, main
from mindspore_serving.cli.commands import COMMANDS
from mindspore_serving.core.params import rows_of

PAGES = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["limits", "limits.md", "docs/limits.md", "limits.md#clients"])
def test_a_page_is_printed_by_any_form_of_its_name(name, capsys) -> None:
    assert main(["docs", name]) == 0
    assert capsys.readouterr().out == (PAGES / "limits.md").read_text()


def test_all_pages_are_listed_with_their_titles(capsys) -> None:
    assert main(["docs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = {str(path.relative_to(PAGES).with_suffix("")) for path in PAGES.rglob("*.md")}
    assert {line.split()[0] for line in lines[: len(names)]} == names
    assert all(len(line.split()) > 1 for line in lines[: len(names)])
    assert f"in {PAGES}." in lines[-1]


def test_an_unknown_page_gets_the_nearest(capsys) -> None:
    assert main(["docs", "limts"]) == 2
    assert "there is no page 'limts'; did you mean 'limits'?" in capsys.readouterr().err


def test_pages_of_an_installation_are_those_of_its_record(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "share" / "doc" / "mindspore-serving" / "cli.md"
    file.parent.mkdir(parents=True)
    file.write_text("# Installed\n")
    record = PackagePath(f"../../../{docs.INSTALLED}cli.md")
    record.dist = type("Dist", (), {"locate_file": lambda self, _: file})()  # type: ignore[assignment]
    monkeypatch.setattr(mindspore_serving, "__file__", str(tmp_path / "lib" / "p" / "__init__.py"))
    monkeypatch.setattr(docs.importlib.metadata, "files", lambda _: [record])
    assert main(["docs", "cli"]) == 0
    assert capsys.readouterr().out == "# Installed\n"
    monkeypatch.setattr(docs.importlib.metadata, "files", lambda _: None)
    assert main(["docs", "cli"]) == 1
    assert "install its wheel again" in capsys.readouterr().err


def test_every_page_that_an_option_names_exists() -> None:
    named = {row.page.partition("#")[0] for c in COMMANDS for row in rows_of(c.settings).values()}
    assert sorted(name for name in named if name and not (PAGES / name).is_file()) == []
