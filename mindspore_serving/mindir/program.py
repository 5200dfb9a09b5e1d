"""A MindIR model as graphs of calls: references resolved, constants and weights as values.

Every name is checked to be defined before it is used, so that a walk in order ends.  No operator is
known here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mindspore_serving.mindir.attributes import Values
from mindspore_serving.mindir.messages import (
    Attribute,
    AttributeKind,
    Graph,
    MindirModel,
    NodeProto,
    Primitive,
)
from mindspore_serving.mindir.values import Constant, Value
from mindspore_serving.mindir.wire import Damaged

_REFERENCE = "REF::"
_RESULT = "shape"  # the attribute of a node that has the type of its result
RETURN = ""
"""Stand-in for the return to the caller, among names of graphs."""


@dataclass(frozen=True, slots=True)
class CalledGraph:
    """Call of an operator, of a graph, or of a function that another node computed.

    `name` is that of its result; `location` its full name in the network, such as
    "Default/backbone-ResNet/Conv2D-op3".  `num_results` is the length of the resulting tuple by the
    file: 0 for no tuple, None if the file does not say.
    """

    name: str
    inputs: tuple[str, ...]
    location: str
    operator: str = ""
    attributes: Mapping[str, Value] | None = None
    graph: str = ""
    node: str = ""
    num_results: int | None = None


@dataclass(frozen=True, slots=True)
class GraphBody:
    """A graph: names of its inputs, its calls in order, the names that it returns."""

    name: str
    inputs: tuple[str, ...]
    calls: tuple[CalledGraph, ...]
    outputs: tuple[str, ...]

    def split_tail(self) -> tuple[list[CalledGraph], CalledGraph | None]:
        """Split the calls from the final call of a graph, whose result this graph returns, if any.

        Nodes that only order effects behind the final call are dropped.
        """
        by_name = {call.name: call for call in self.calls}
        behind = set()
        call = by_name.get(self.outputs[0]) if len(self.outputs) == 1 else None
        while call is not None and call.operator == "Depend":
            behind.add(call.name)
            call = by_name.get(call.inputs[0])
        if call is None or call.operator:
            return list(self.calls), None
        behind.add(call.name)
        return [earlier for earlier in self.calls if earlier.name not in behind], call


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """All graphs of a file by name; `main` is the entry."""

    main: GraphBody
    graphs: Mapping[str, GraphBody]
    constants: Mapping[str, Value]
    weights: Mapping[str, Constant]

    def calls(self) -> Iterator[CalledGraph]:
        for body in self.graphs.values():
            yield from body.calls


def make_program(model: MindirModel, values: Values) -> GraphProgram:
    """Return the program of `model`.

    Raises StartError for names that are not defined or defined twice.
    """
    if model.graph is None:
        raise Damaged("there is no graph in it")
    graphs = [model.graph, *model.functions]
    primitives = {primitive.name: primitive for primitive in model.primitives}
    names = {graph.name for graph in graphs}
    if len(names) != len(graphs):
        raise Damaged("two graphs have the same name")
    reader = _Reader(values, primitives, names)
    bodies = {graph.name: reader.body(graph) for graph in graphs}
    weights = {tensor.name: values.tensor(tensor) for graph in graphs for tensor in graph.parameter}
    program = GraphProgram(bodies[model.graph.name], bodies, reader.constants, weights)
    for body in bodies.values():
        _check_order(body, program)
    return program


class _Reader:
    def __init__(
        self, values: Values, primitives: Mapping[str, Primitive], graphs: set[str]
    ) -> None:
        self._values = values
        self._primitives = primitives
        self._graphs = graphs
        self._attributes: dict[str, dict[str, Value]] = {}
        self.constants: dict[str, Value] = {}

    def body(self, graph: Graph) -> GraphBody:
        calls = [call for node in graph.node if (call := self._call(node)) is not None]
        inputs = tuple(entry.name for entry in graph.input)
        return GraphBody(
            graph.name, inputs, tuple(calls), tuple(entry.name for entry in graph.output)
        )

    def _call(self, node: NodeProto) -> CalledGraph | None:
        """Return the call of a node; None for a constant, which is kept for all graphs."""
        if len(node.output) != 1:
            raise Damaged(f"node '{node.name}' has {len(node.output)} results, not one")
        name = node.output[0]
        if node.op_type == "Constant":
            if len(node.attribute) != 1:
                raise Damaged(f"constant '{name}' has {len(node.attribute)} values, not one")
            self.constants[name] = self._values.of(node.attribute[0])
            return None
        target = node.op_type.removeprefix(_REFERENCE)
        call = CalledGraph(name, tuple(node.input), node.domain or node.name)
        if target == node.op_type:
            operator, attributes = target, self._read(node.attribute)
        elif target in self._primitives:
            operator, attributes = self._primitives[target].op_type, self._attributes_of(target)
        else:
            is_graph = target in self._graphs
            return replace(call, graph=target) if is_graph else replace(call, node=target)
        count = _num_results(node)
        return replace(call, operator=operator, attributes=attributes, num_results=count)

    def _attributes_of(self, primitive: str) -> dict[str, Value]:
        if primitive not in self._attributes:
            self._attributes[primitive] = self._read(self._primitives[primitive].attribute)
        return self._attributes[primitive]

    def _read(self, entries: Sequence[Attribute]) -> dict[str, Value]:
        return {entry.name: self._values.of(entry) for entry in entries}


def _num_results(node: NodeProto) -> int | None:
    for entry in node.attribute:
        if entry.name == _RESULT:
            if entry.type in (AttributeKind.TUPLE, AttributeKind.LIST):
                is_open = entry.seq_info is not None and entry.seq_info.is_dyn_len
                return None if is_open else len(entry.values)
            return 0 if entry.type in (AttributeKind.TENSOR, AttributeKind.TENSORS) else None
    return None


def _check_order(body: GraphBody, program: GraphProgram) -> None:
    known = {*body.inputs, *program.constants, *program.weights, *program.graphs}
    for call in body.calls:
        needed = (*call.inputs, call.node) if call.node else call.inputs
        for name in needed:
            if name not in known:
                raise Damaged(
                    f"'{call.location}' uses '{name}', which is not defined before it: "
                    "a missing name, or a cycle"
                )
        if call.name in known:
            raise Damaged(f"two values have the name '{call.name}'")
        known.add(call.name)
    if not body.outputs or not known.issuperset(body.outputs):
        raise Damaged(f"graph '{body.name}' does not define what it returns")
