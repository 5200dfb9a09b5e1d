"""Sandbox in which chat templates run.

Templates come with a model or a request and are not trusted, nor are their arguments: they reach no
private attribute of Python, cannot change their arguments, and each rendering has a budget of time
and of characters.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_environment
from jinja2.visitor import NodeTransformer

from mindspore_serving.errors import StartError, TooLarge
from mindspore_serving.llm.chat.budget import MAX_WIDTH, RenderingBudget

_MAX_TEMPLATE = 1 << 20  # characters
_WIDENING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})  # methods of str
_FORBIDDEN = frozenset({"translate", "maketrans", "format_map", "to_bytes", "from_bytes"})
# Budget of the present rendering; not set while a template is compiled.
_budget: ContextVar[RenderingBudget] = ContextVar("budget")


@contextmanager
def spending(budget: RenderingBudget) -> Iterator[None]:
    """Charge templates that are rendered inside the block to `budget`."""
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


class TemplateRefused(jinja2.TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """The tag {% generation %}, which marks answers for training; here it has no effect."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # variables set inside stay inside


class _Metered(NodeTransformer):
    """Makes every loop check the clock, and charges for every text that is output or joined."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_metered")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [_filtered(_expression(part), "_charged") for part in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:
        self.generic_visit(node)
        node.nodes = [_filtered(part, "_charged") for part in node.nodes]
        return node


def _expression(node: Any) -> nodes.Expr:
    is_text = isinstance(node, nodes.TemplateData)
    expression: nodes.Expr = nodes.Const(node.data) if is_text else node
    return expression


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Namespace(Namespace):
    """Namespace without names that begin with an underscore."""

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
    """Jinja environment of chat templates."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self.filters |= {name: _checked(name) for name in _CHECKS}
        self.filters |= {"join": _join, "tojson": _to_json}
        self.filters["_metered"] = lambda items: _budget.get().metered(items)
        self.filters["_charged"] = _charged
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format[:256])  # noqa: A006
        # Not the type `dict`: its attributes lead out of the sandbox.
        self.globals["dict"] = lambda *args, **names: dict(*args, **names)
        self.globals["namespace"] = _Namespace

    def read(self, source: str) -> jinja2.Template:
        """Compile a template.

        Raises StartError.
        """
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
        except RecursionError:
            raise StartError("the chat template is nested too deeply") from None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _FORBIDDEN and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def checked(*args: Any, **named: Any) -> str:
            _budget.get().check_format(value.__self__, [*args, *named.values()])
            return inner(*args, **named)

        return checked

    def call(self, context: jinja2.runtime.Context, called: Any, *args: Any, **named: Any) -> Any:
        budget = _budget.get()
        budget.tick()
        text = getattr(called, "__self__", None)
        if isinstance(text, str):
            _check_method(budget, text, called.__name__, [*args, *named.values()])
        return super().call(context, called, *args, **named)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        budget = _budget.get()
        if operator == "**":
            raise TooLarge("the chat template computes a power, which may be too large")
        if operator == "*":
            budget.check_product(left, right)
        elif operator == "+":
            budget.check_sum(left, right)
        elif isinstance(left, str):
            budget.check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)


def _check_method(budget: RenderingBudget, text: str, name: str, args: list[Any]) -> None:
    """Charge for a method of a string before it is called; it rejects wrong arguments itself."""
    budget.spend(len(text))
    if name in _WIDENING:
        for width in args:
            budget.check_width(width)
        budget.spend(MAX_WIDTH * (1 + text.count("\t") if name == "expandtabs" else 1))
    elif name == "replace" and len(args) >= 2:
        budget.check_replace(text, args[0], args[1])
    elif name == "join" and args and isinstance(args[0], list | tuple):
        budget.spend(len(text) * len(args[0]))
        budget.spend_on(args[0])


def _charged(value: Any) -> Any:
    budget = _budget.get()
    budget.tick()
    budget.spend_on(value)
    return value


def _checked(name: str) -> Callable[..., Any]:
    """Return a Jinja filter that is charged before it runs.

    While a template is compiled there is no budget, so the filter raises and Jinja does not
    evaluate it on constants.
    """
    inner, check = FILTERS[name], _CHECKS[name]
    passes = getattr(inner, "jinja_pass_arg", None)

    def checked(*args: Any, **named: Any) -> Any:
        check(_budget.get(), *(args[1:] if passes else args), **named)
        return inner(*args, **named)

    if passes:
        checked.jinja_pass_arg = passes  # type: ignore[attr-defined]
    return checked


def _check_widths(budget: RenderingBudget, value: Any, *args: Any, **named: Any) -> None:
    for width in (*args, *named.values()):
        budget.check_width(width)
    budget.spend_on(value)
    budget.spend(MAX_WIDTH)


def _check_indent(
    budget: RenderingBudget, text: Any, width: Any = 4, *args: Any, **named: Any
) -> None:
    budget.check_width(width)
    size = len(width) if isinstance(width, str) else width
    budget.spend(len(text) + (1 + text.count("\n")) * int(size))


def _check_growing(budget: RenderingBudget, value: Any, *args: Any, **named: Any) -> None:
    for _ in range(8):  # escaping a character yields at most 8
        budget.spend_on(value)
    for argument in (*args, *named.values()):
        budget.spend(len(argument) * len(str(value)) if isinstance(argument, str) else 1)


_CHECKS: dict[str, Callable[..., None]] = {
    "batch": _check_widths,
    "center": _check_widths,
    "slice": _check_widths,
    "indent": _check_indent,
    "format": lambda budget, text, *args, **named: budget.check_format(
        text, [*args, *named.values()]
    ),
    "replace": lambda budget, text, old, new, count=None: budget.check_replace(str(text), old, new),
    "string": lambda budget, value: budget.spend_on(value),
    **dict.fromkeys(
        ("e", "escape", "forceescape", "pprint", "urlencode", "urlize", "wordwrap", "xmlattr"),
        _check_growing,
    ),
}


@pass_environment
def _join(
    environment: Sandbox, values: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    budget = _budget.get()
    items = list(budget.metered(values))
    if attribute is not None:
        items = [environment.getitem(item, attribute) for item in items]
    budget.spend(len(d) * len(items))
    budget.spend_on(items)
    return str(d).join(map(str, items))


def _raise_exception(message: str) -> None:
    raise TemplateRefused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's filter escapes <, > and &, which the model must see as they are.
    return _budget.get().dump_json(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
