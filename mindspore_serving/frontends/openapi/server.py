"""What the routes of no protocol take and answer: health, numbers, the pages."""

from mindspore_serving.frontends.operation import (
    JSON,
    STRING,
    TEXT,
    Operation,
    Schema,
    Section,
    to_array,
    to_object,
)

HTML = "text/html"
ERROR = to_object({"error_msg": STRING})
_OBJECT: Schema = {"type": "object"}
_SERVABLE = to_object(
    {
        "name": STRING,
        "version": {"type": "integer"},
        "ready": {"type": "boolean"},
        "reason": STRING,
    }
)
_READY = to_object({"ready": {"type": "boolean"}, "servables": to_array(_SERVABLE)})
_OBSERVED = to_object({"name": STRING, "version": {"type": "integer"}, "methods": _OBJECT})
_ALL_OBSERVED = to_object(
    {"servables": to_array(_OBSERVED), "operator": {"type": "boolean"}}, "operator"
)


def section() -> Section:
    """What every server has."""
    ready, text = {JSON: _READY}, "Whether everything can be called"
    unhealthy = {"503": {JSON: to_object({"error": STRING, "error_type": STRING})}}
    operations = (
        Operation("GET", "/livez", "Whether the server answers", {TEXT: STRING}, is_open=True),
        Operation(
            "GET", "/health", text, {TEXT: STRING}, others={"503": {TEXT: STRING}}, is_open=True
        ),
        Operation(
            "GET",
            "/readyz",
            f"{text}, or the servables that are named",
            ready,
            others={"503": ready},
            query=("servable",),
            is_open=True,
        ),
        Operation(
            "GET",
            "/readyz/{servable}",
            "Whether a servable can be called",
            ready,
            others={"503": ready},
            is_open=True,
        ),
        Operation(
            "GET",
            "/servables",
            "What is served, its methods, and how busy it is",
            {JSON: _ALL_OBSERVED},
        ),
        Operation(
            "GET",
            "/servables/history",
            "How busy each servable was in the last hour",
            {JSON: to_object({"seconds": {"type": "number"}, "columns": to_array(STRING)})},
        ),
        Operation("GET", "/metrics", "Numbers for Prometheus", {TEXT: STRING}),
        Operation(
            "GET", "/", "A page for browsers; for others nothing, or 503", {}, others=unhealthy
        ),
        Operation("GET", "/page/{name}", "A file of the pages", {}),
        Operation("GET", "/docs", "This document, for people", {HTML: STRING}),
        Operation("GET", "/openapi.json", "This document", {JSON: _OBJECT}),
    )
    about = "Health, numbers and pages."
    return Section("server", about, {JSON: ERROR, TEXT: STRING}, operations)
