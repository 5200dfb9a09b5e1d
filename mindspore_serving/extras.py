"""Extras of this package: what each installs, and which of them has a module.

Read from the metadata of the installed package, so that only `pyproject.toml` defines them.  What
reads it is slow to import, and few commands need it.
"""

import re

NAME = "mindspore-serving"
NOT_FOR_SERVERS = frozenset({"dev", "examples"})  # for people, not for servers
_ROW = re.compile(r"""([A-Za-z0-9._-]+)([^;]*);.*\bextra == ["']([\w-]+)["']""")
_DISTRIBUTIONS = {  # by module
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "jwt": "pyjwt",
    "llama_cpp": "llama-cpp-python",
    "opentelemetry": "opentelemetry-sdk",
    "pil": "pillow",
    "piper": "piper-tts",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def packages() -> dict[str, dict[str, str]]:
    """Return packages and versions of each extra for servers; {} if this is not installed."""
    by_extra: dict[str, dict[str, str]] = {}
    for row in _requirements():
        match = _ROW.fullmatch(row)
        if match and match[3] not in NOT_FOR_SERVERS:
            by_extra.setdefault(match[3], {})[_normal(match[1])] = match[2].strip()
    return by_extra


def installed(package: str) -> str:
    """Return the version of `package`; "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def advice(module: str) -> str:
    """Return what installs a missing module: if several extras do, `llm`."""
    top = module.partition(".")[0]
    package = _normal(_DISTRIBUTIONS.get(top.lower(), top))
    extras = [extra for extra, names in packages().items() if package in names]
    extra = "llm" if "llm" in extras else next(iter(extras), "")
    return f"install it with: {command(extra) if extra else f'pip install {package}'}"


def command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{NAME}[{extra}]'"


def missing(error: ModuleNotFoundError, user: str) -> str:
    """Return an error text: `who` needs the module of `error`, and what installs it."""
    name = error.name or str(error)
    return f"{user} needs {name}, which is not installed; {advice(name)}"


def _requirements() -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(NAME) or []
    except PackageNotFoundError:
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
