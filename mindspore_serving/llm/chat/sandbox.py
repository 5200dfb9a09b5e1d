"""The sandbox in which chat templates run.

Neither templates, which come with a model, nor their arguments can be trusted: they reach no
private attribute of Python, change nothing they are given, and are stopped at a time limit.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from mindspore_serving.errors import StartError, TooLarge

DEADLINE = "_deadline"  # a variable of every rendering: when, by the sandbox's clock, it is over

_MAX_TEMPLATE = 1 << 20  # characters
_MAX_REPEATED = 1 << 20  # items of what a template multiplies


class TemplateRefused(jinja2.TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """{% generation %} marks answers for training; here it is what it encloses."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # what it sets is not seen outside


class _Metered(NodeTransformer):
    """Makes every loop look at the clock: nothing else can take long in a template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        deadline = nodes.Name(DEADLINE, "load")
        node.iter = nodes.Filter(node.iter, "_metered", [deadline], [], None, None)
        return node


class _Namespace(Namespace):
    """Holds no names that Python gives a meaning."""

    def __init__(self, *args: Any, **names: Any) -> None:
        initial = dict(*args, **names)
        for name in initial:
            _check_name(name)
        super().__init__(initial)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.TemplateRuntimeError(f"a namespace cannot hold {name!r}")


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self._clock = clock
        self.filters["tojson"] = _to_json
        self.filters["_metered"] = self._meter
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)  # noqa: A006
        # The type itself would be a way out.
        self.globals["dict"] = lambda *args, **names: dict(*args, **names)
        self.globals["namespace"] = _Namespace

    def read(self, source: str) -> jinja2.Template:
        if len(source) > _MAX_TEMPLATE:
            raise StartError(
                f"the chat template has {len(source)} characters, expected at most {_MAX_TEMPLATE}"
            )
        try:
            tree = _Metered().visit(self.parse(source))
            tree.set_environment(self)
            return self.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise StartError(f"line {error.lineno} of the chat template: {error}") from error

    def _meter(self, items: Iterable[Any], deadline: float) -> Iterator[Any]:
        for item in items:
            if self._clock() > deadline:
                raise TooLarge("the chat takes the model's template too long")
            yield item

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" or _product_size(left, right) > _MAX_REPEATED:
            raise TooLarge("the chat template computes something too large")
        return super().call_binop(context, operator, left, right)


def _product_size(left: Any, right: Any) -> int:
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | list | tuple) and isinstance(times, int):
            return len(many) * times
    return 0


def _raise_exception(message: str) -> None:
    raise TemplateRefused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and &, which a model is not to see.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
