"""Control flow between graphs: loops, and where branches meet.  It knows no values.

MindSpore writes loops and branches as graphs that end in a call: a loop is a graph that reaches
itself through final calls, and the code behind a branch is a graph that both sides end in.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mindspore_serving.mindir.program import RETURN, GraphBody, GraphProgram


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """Final calls of graphs, by graph; a graph of `stops` counts as an end."""

    edges: dict[str, frozenset[str]]

    def reached(self, start: str, stops: Collection[str] = ()) -> set[str]:
        """Return the graphs, or RETURN, that `start` may end in, none of them behind a stop."""
        reached: set[str] = set()
        waiting = list(self.edges[start])
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                if name not in stops:
                    waiting.extend(self.edges.get(name, ()))
        return reached

    def is_loop(self, name: str, stops: Collection[str]) -> bool:
        """Return whether `name` can reach itself without passing a stop."""
        return name in self.reached(name, stops)

    def exits(self, header: str, stops: Collection[str]) -> list[str]:
        """Return the exits of the loop of `header`: graphs that do not lead back, or RETURN."""
        inside = {header} | {
            name
            for name in self.reached(header, stops)
            if name not in stops and name != RETURN and header in self.reached(name, stops)
        }
        return sorted({end for name in inside for end in self.edges[name]} - inside)

    def meeting(self, starts: Iterable[str], stops: Collection[str]) -> str:
        """Return the first graph on every path from all of `starts`, or RETURN."""
        after = self._always_after(starts, stops)
        common = frozenset.intersection(*(after[start] for start in starts)) - {RETURN}
        return max(sorted(common), key=lambda name: len(after[name]), default=RETURN)

    def _always_after(
        self, starts: Iterable[str], stops: Collection[str]
    ) -> dict[str, frozenset[str]]:
        """Return for each graph those on every path from it, with itself (its post-dominators)."""
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
    """Return the control flow between all graphs of `program`."""
    return ControlFlow({body.name: _ends(body, program) for body in program.graphs.values()})


def _ends(body: GraphBody, program: GraphProgram) -> frozenset[str]:
    _, call = body.split_tail()
    if call is None:
        return frozenset({RETURN})
    if call.graph:
        return frozenset({call.graph})
    calls = {call.name: call for call in body.calls}
    ends: set[str] = set()
    waiting = [call.node]
    while waiting:
        name = waiting.pop()
        if name in program.graphs:
            ends.add(name)
        elif name in calls and calls[name].operator in _RETURNS_GRAPHS:
            waiting.extend(calls[name].inputs[: 1 if calls[name].operator == "Partial" else None])
    return frozenset(ends or {RETURN})


_RETURNS_GRAPHS = frozenset(
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
