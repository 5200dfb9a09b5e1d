"""`mindspore-serving docs`: print the pages of documentation that belong to this version.

They lie in docs/ of a checkout, and in share/doc/mindspore-serving of an installation.
"""

import importlib.metadata
from pathlib import Path

import mindspore_serving
from mindspore_serving.cli.tool_settings import DocsSettings
from mindspore_serving.errors import InvalidInputs, StartError, did_you_mean
from mindspore_serving.extras import NAME

INSTALLED = f"share/doc/{NAME}/"
_A_PAGE = "cli.md"  # one that is always there


def run(settings: DocsSettings) -> int:
    """Print a page, or all names with their titles; return 0.  Raises ServingError."""
    directory = find_pages()
    paths = {
        path.relative_to(directory).with_suffix("").as_posix(): path
        for path in sorted(directory.rglob("*.md"))
    }
    if not settings.page:
        width = max(map(len, paths))
        for name, path in paths.items():
            print(f"{name.ljust(width)}  {_title(path)}")
        print(f"\nThese pages are in {directory}.  mindspore-serving docs NAME prints one.")
        return 0
    name = settings.page.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name not in paths:
        near = did_you_mean(name, paths)
        raise InvalidInputs(f"there is no page {name!r}{near}; mindspore-serving docs lists them")
    print(paths[name].read_text("utf-8"), end="")
    return 0


def find_pages() -> Path:
    """Return the directory of the pages.  Raises StartError if they are not installed."""
    checkout = Path(mindspore_serving.__file__).resolve().parents[1] / "docs"
    if (checkout / _A_PAGE).is_file():
        return checkout
    try:
        files = importlib.metadata.files(NAME) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith(INSTALLED + _A_PAGE):
            return Path(str(file.locate())).resolve().parent
    raise StartError(f"the pages of {NAME} are not installed here: install its wheel again by pip")


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line[2:].strip() for line in file if line.startswith("# ")), "")
