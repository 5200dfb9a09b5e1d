"""The extras of this package: what each installs, and which of them brings a module.

Read from what pip has recorded of this package, so that `pyproject.toml` alone says it.
"""

import importlib.metadata
import re
from importlib.metadata import PackageNotFoundError, version

NAME = "mindspore-serving"
FOR_PEOPLE = frozenset({"dev", "examples"})  # no server needs them
_ROW = re.compile(r"""([A-Za-z0-9._-]+)([^;]*);.*\bextra == ["']([\w-]+)["']""")
_DISTRIBUTIONS = {  # by module
    "llama_cpp": "llama-cpp-python",
    "opentelemetry": "opentelemetry-sdk",
    "pil": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def packages() -> dict[str, dict[str, str]]:
    """The packages of each extra that a server may need, and which versions; none if this package
    is not installed.
    """
    found: dict[str, dict[str, str]] = {}
    for row in _requirements():
        match = _ROW.fullmatch(row)
        if match and match[3] not in FOR_PEOPLE:
            found.setdefault(match[3], {})[_normal(match[1])] = match[2].strip()
    return found


def installed(package: str) -> str:
    """The version of `package`; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def advice(module: str) -> str:
    """What to run for a module that is missing; of several extras that bring it `llm`."""
    top = module.partition(".")[0]
    package = _normal(_DISTRIBUTIONS.get(top.lower(), top))
    found = [extra for extra, names in packages().items() if package in names]
    extra = "llm" if "llm" in found else next(iter(found), "")
    return f"install it with: {command(extra) if extra else f'pip install {package}'}"


def command(extra: str) -> str:
    return f"pip install '{NAME}[{extra}]'"


def missing(error: ModuleNotFoundError, who: str) -> str:
    """That `who` needs the module of `error`, and what installs it."""
    name = error.name or str(error)
    return f"{who} needs {name}, which is not installed; {advice(name)}"


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires(NAME) or []
    except PackageNotFoundError:
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
