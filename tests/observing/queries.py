"""PromQL of dashboards and rules: what it asks for."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
PROMETHEUS = ROOT / "deploy" / "prometheus"
_SCRAPED = {"job", "instance"}  # labels that Prometheus adds
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_VARIABLE = re.compile(r"\$__rate_interval")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{([^}]*)\})?")
_KEYWORDS = {"and", "or", "unless", "by", "on", "without", "ignoring", "bool", "offset"}


def of_dashboard(path: Path) -> Iterator[str]:
    """The queries of its panels."""
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


@cache
def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def filled(query: str) -> str:
    """With what Grafana puts in place of its variables."""
    return _VARIABLE.sub("1m", query).replace("$job", ".*").replace("$servable", ".*")


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """(metric, labels that are asked for) of each selector; a label that results are grouped by
    is asked of all metrics."""
    text = _TEXT.sub('""', re.sub(r"\[[^\]]*\]", "", filled(query)))
    grouped = {label for found in _GROUPING.findall(text) for label in _WORD.findall(found)}
    for match in _SELECTOR.finditer(_GROUPING.sub("", text)):
        name, matchers = match[1], match[2] or ""
        is_function = text[match.end() : match.end() + 1] == "(" or name in _KEYWORDS
        if not is_function and not re.match(r"\s*\(", _GROUPING.sub("", text)[match.end() :]):
            labels = set(re.findall(r"([a-zA-Z_]\w*)\s*[=!]", matchers))
            yield name, (labels | grouped) - _SCRAPED
