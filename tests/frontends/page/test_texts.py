"""The texts of the page: every language has all of them, and the page uses them all."""

import re
from pathlib import Path

import pytest

from mindspore_serving.frontends import page

STATIC = Path(page.__file__).parent / "static"
TABLES = sorted((STATIC / "texts").glob("*.js"))
ENTRY = re.compile(r'^  "([^"]+)": "((?:[^"\\]|\\.)*)",$', re.MULTILINE)
OTHERS = [path for path in STATIC.rglob("*.*") if not {"texts", "vendor"} & set(path.parts)]
SOURCE = "\n".join(path.read_text() for path in OTHERS if path.suffix in (".js", ".html"))


def texts(path: Path) -> dict[str, str]:
    found = dict(ENTRY.findall(path.read_text()))
    assert found, path
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_every_language_has_the_same_texts(table: Path) -> None:
    english = texts(STATIC / "texts" / "en.js")
    found = texts(table)
    assert found.keys() == english.keys()
    assert list(found) == sorted(found)
    assert table.read_text().count("\n") == len(found) + 4  # no line that ENTRY does not know


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_every_text_has_the_same_places_for_values(table: Path) -> None:
    places = re.compile(r"\{\w+\}")
    english = texts(STATIC / "texts" / "en.js")
    for key, text in texts(table).items():
        if key.endswith(".one"):  # says the number itself
            continue
        assert set(places.findall(text)) == set(places.findall(english[key])), key


def test_every_text_is_used_and_every_used_text_is_there() -> None:
    keys = texts(STATIC / "texts" / "en.js").keys()
    stems = {key.rpartition(".")[0] if key.endswith((".one", ".other")) else key for key in keys}
    assert [key for key in stems if f'"{key}"' not in SOURCE] == []
    used = re.findall(r'\bt\("([^"]+)"', SOURCE) + re.findall(r'data-t[a-z-]*="([^"]+)"', SOURCE)
    used += [
        f"{stem}.{form}"
        for stem in re.findall(r'counted\("([^"]+)"', SOURCE)
        for form in ("one", "other")
    ]
    assert [key for key in used if key not in keys] == []
