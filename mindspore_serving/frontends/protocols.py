"""Which protocols an HTTP server speaks besides the classic one: a row each."""

from importlib import import_module

from starlette.routing import BaseRoute

from mindspore_serving.frontends.site import Site

# Modules with a function `routes(site)`.  The first that matches a request answers it.
PROTOCOLS = (
    "mindspore_serving.frontends.openai",
    "mindspore_serving.frontends.tgi",
    "mindspore_serving.frontends.llm_serving",
    "mindspore_serving.frontends.page",
)


def routes(site: Site) -> list[BaseRoute]:
    """Those of all protocols."""
    found: list[BaseRoute] = []
    for name in PROTOCOLS:
        try:
            found += import_module(name).routes(site)
        except (ImportError, AttributeError):
            import traceback

            traceback.print_exc()
    return found
