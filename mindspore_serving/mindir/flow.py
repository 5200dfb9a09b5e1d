"""Which graphs end by calling which: loops, and where branches meet.  Knows no values.

MindSpore writes loops and branches as graphs that end in a call: a loop is a graph that comes to
itself in this way, and what follows a branch is a graph that both sides end in.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mindspore_serving.mindir.program import RETURN, GraphBody, GraphProgram


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """The calls at the end of graphs; a target of `stops` counts as an end."""

    edges: dict[str, frozenset[str]]

    def reached(self, start: str, stops: Collection[str] = ()) -> set[str]:
        """Graphs that a call of `start` may end in, also RETURN; not what lies behind a stop."""
        found: set[str] = set()
        waiting = list(self.edges[start])
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                if name not in stops:
                    waiting.extend(self.edges.get(name, ()))
        return found

    def is_loop(self, name: str, stops: Collection[str]) -> bool:
        """Whether `name` may come to itself without passing a stop."""
        return name in self.reached(name, stops)

    def exits(self, header: str, stops: Collection[str]) -> list[str]:
        """Where the loop of `header` may leave to: graphs that do not come back, or RETURN."""
        inside = {header} | {
            name
            for name in self.reached(header, stops)
            if name not in stops and name != RETURN and header in self.reached(name, stops)
        }
        return sorted({end for name in inside for end in self.edges[name]} - inside)

    def meeting(self, starts: Iterable[str], stops: Collection[str]) -> str:
        """The first graph that every way from all of `starts` passes, or RETURN."""
        after = self._always_after(starts, stops)
        common = frozenset.intersection(*(after[start] for start in starts)) - {RETURN}
        return max(sorted(common), key=lambda name: len(after[name]), default=RETURN)

    def _always_after(
        self, starts: Iterable[str], stops: Collection[str]
    ) -> dict[str, frozenset[str]]:
        """For each graph, those that every way from it passes, itself included."""
        ends = {*stops, RETURN}
        names = {*starts} | {name for start in starts for name in self.reached(start, stops)}
        after = {name: frozenset({name}) if name in ends else frozenset(names) for name in names}
        is_changed = True
        while is_changed:
            is_changed = False
            for name in names - ends:
                new = frozenset.intersection(*(after[end] for end in self.edges[name])) | {name}
                if new != after[name]:
                    after[name], is_changed = new, True
        return after


def flow_of(program: GraphProgram) -> ControlFlow:
    """The flow between all graphs of `program`."""
    return ControlFlow({body.name: _ends(body, program) for body in program.graphs.values()})


def _ends(body: GraphBody, program: GraphProgram) -> frozenset[str]:
    _, call = body.parted()
    if call is None:
        return frozenset({RETURN})
    if call.graph:
        return frozenset({call.graph})
    calls = {one.name: one for one in body.calls}
    found: set[str] = set()
    waiting = [call.node]
    while waiting:
        name = waiting.pop()
        if name in program.graphs:
            found.add(name)
        elif name in calls and calls[name].operator in _GIVES_GRAPHS:
            waiting.extend(calls[name].inputs[: 1 if calls[name].operator == "Partial" else None])
    return frozenset(found or {RETURN})


_GIVES_GRAPHS = frozenset(
    {
        "Partial",
        "Switch",
        "SwitchLayer",
        "switch_layer",
        "make_tuple",
        "MakeTuple",
        "MakeList",
        "Depend",
    }
)
