"""The text that the model learns: six novels by Jane Austen, out of a Debian package.

    apt-get download r-cran-janeaustenr         # or install it, and name the installed directory

The package keeps each novel as a table of lines in R's file format, of which this reads what is
needed.  Knows no tokens and no model.
"""

import re
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

TITLES = (
    "Emma",
    "Mansfield Park",
    "Northanger Abbey",
    "Persuasion",
    "Pride and Prejudice",
    "Sense and Sensibility",
)
INSTALLED = "usr/lib/R/site-library/janeaustenr"
STRINGS = 16  # R's number for a vector of strings
HELD_OUT_CHARS = 6000  # of each novel, from its middle
HEADING = re.compile(
    r"(CHAPTER|Chapter) \w+|[\W\dA-Z]*|([Bb]y)?( ?Jane Austen.*)?|Persuasion|Finis"
)


def read_novels(package: Path) -> dict[str, list[str]]:
    """Title -> paragraphs, each one line of text.

    `package` is the .deb, or the directory that it installs.
    """
    if package.is_dir():
        return _read_table(package / "data" / "Rdata.rdb")
    with tempfile.TemporaryDirectory() as unpacked:
        subprocess.run(["dpkg-deb", "-x", str(package), unpacked], check=True)
        return _read_table(Path(unpacked) / INSTALLED / "data" / "Rdata.rdb")


def split(paragraphs: list[str]) -> tuple[list[str], list[str]]:
    """(to learn, held out): a passage in the middle, whole paragraphs, is held out."""
    begin = end = len(paragraphs) // 2
    while sum(map(len, paragraphs[begin:end])) < HELD_OUT_CHARS:
        end += 1
    return paragraphs[:begin] + paragraphs[end:], paragraphs[begin:end]


def _read_table(path: Path) -> dict[str, list[str]]:
    """The file holds the novels in the order of their titles, each compressed by itself."""
    content, found = path.read_bytes(), {}
    for title in TITLES:
        one = zlib.decompressobj()
        lines = _strings(one.decompress(content[4:]))  # the first four bytes are its size
        content = one.unused_data
        found[title] = list(_paragraphs("\n".join(lines)))
    return found


def _strings(content: bytes) -> list[str]:
    """The vector of strings that R wrote: a header, a type, a count; then (type, size, text)."""
    encoding = int.from_bytes(content[14:18], "big")
    at = 18 + encoding
    kind, count = _integer(content, at), _integer(content, at + 4)
    if content[:2] != b"X\n" or kind != STRINGS:
        raise SystemExit("the package is not the one that is expected: it holds no lines of text")
    at += 8
    lines = []
    for _ in range(count):
        size = _integer(content, at + 4)
        lines.append(content[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return lines


def _integer(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "big")


def _paragraphs(text: str) -> Iterator[str]:
    """Without headings, title pages, and the editor's note that ends Northanger Abbey."""
    text = text.partition("A NOTE ON THE TEXT")[0].replace("_", "")
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        if not HEADING.fullmatch(paragraph):
            yield paragraph
