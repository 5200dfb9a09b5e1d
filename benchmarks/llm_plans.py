"""What OpenVINO's plugin makes of our graph and of OpenVINO GenAI's graph of the same model: which
nodes, by which kernels, in what precision and layout, and what share of a pass they take.

`python -m benchmarks.llm_plans [--form float,int8,int4] [--sizes 1,8,32,p128] [--turns 20]`

Both graphs are compiled in one process, with the properties that their engines give them, and
compute the same passes in turns, in an order that chance decides.  Times of nodes are averages of
the plugin's counters; those of passes are medians.  A ratio is ours over theirs, below 1 is faster;
that of passes is of a pair, with the interval of its median by bootstrap.

Run it with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as workers of a server have it: in small pages
GenAI's graph, compiled twice, differs from itself by up to a quarter.
"""

import argparse
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from benchmarks.llm_contenders import CONTENDERS, FORMS
from benchmarks.llm_figures import interval
from benchmarks.llm_machine import features
from benchmarks.llm_model import model
from benchmarks.report import print_json, print_table
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.attention import BLOCK_SIZE
from mindspore_serving.llm.runtimes.openvino.opening import open_runner
from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner
from mindspore_serving.llm.step import Row, Step

PAST = 128  # tokens of each row before a step that decodes
CACHE_BLOCKS = 256
COUNTED = {"PERF_COUNT": True}
MATRIX = re.compile(r"(\w+_proj|lm_head)")
CHOSEN = "chosen"  # the input with the rows that logits are wanted of
LEAST_MS = 0.05  # of a kind that is shown


@dataclass(frozen=True, slots=True)
class Size:
    """A pass: `rows` sequences with `length` new tokens each, `past` computed before."""

    name: str
    rows: int
    length: int
    past: int

    @classmethod
    def of(cls, name: str) -> "Size":
        """ "8" is a step of 8 rows, "p128" a prompt of 128 tokens."""
        if name.startswith("p"):
            return cls(name, 1, int(name[1:]), 0)
        return cls(name, int(name), 1, PAST)

    @property
    def blocks(self) -> int:
        """Of each row."""
        return -(-(self.past + self.length) // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Form:
    """How nodes are computed: `kind` is a layer type, or the matrix that is multiplied by; `kernel`
    "brgemm_avx512_bf16 ab, bf16", with the output's layout and the type of the weights."""

    kind: str
    kernel: str


Spent = dict[Form, tuple[int, float]]  # how many nodes, and their milliseconds


class Graph:
    """A compiled graph, its request with inputs that stay, and how often it was computed."""

    request: Any
    num_passes: int

    def run(self, size: Size) -> None:
        raise NotImplementedError

    def timed(self, size: Size) -> tuple[float, float]:
        """Seconds of a pass, and processor seconds of all its threads."""
        began, used = time.perf_counter(), time.process_time()
        self.run(size)
        return time.perf_counter() - began, time.process_time() - used

    def totals(self) -> Spent:
        """Of all passes so far.  The plugin's counters are averages over them."""
        nodes = self.request.get_compiled_model().get_runtime_model().get_ops()
        forms = {node.get_friendly_name(): _form(node) for node in nodes}
        found: Spent = {}
        for one in self.request.get_profiling_info():
            if one.status == ov.ProfilingInfo.Status.EXECUTED:
                count, spent = found.get(forms[one.node_name], (0, 0.0))
                spent += 1000 * one.real_time.total_seconds() * self.num_passes
                found[forms[one.node_name]] = count + 1, spent
        return found


class Ours(Graph):
    def __init__(self, directory: Path) -> None:
        self.num_passes = 0
        config = EngineConfig(max_num_seqs=64, kv_cache_memory=256 << 20)
        infer = OpenVINORunner._infer

        def counted(runner: OpenVINORunner, *given: Any) -> Any:
            self.num_passes += 1
            return infer(runner, *given)

        with patch.object(OpenVINORunner, "_infer", counted):  # to warm up
            self._runner = open_runner(directory, config, properties=COUNTED)
        self.request = self._runner._requests[0]

    def run(self, size: Size) -> None:
        rows = (
            Row([7] * size.length, size.past, [*range(i * size.blocks, (i + 1) * size.blocks)], 1)
            for i in range(size.rows)
        )
        self._runner.run(Step(tuple(rows)))
        self.num_passes += 1


class GenAIs(Graph):
    """As its pipeline of continuous batching compiles it: with paged attention, and of the last
    layer only the rows that are wanted."""

    def __init__(self, directory: Path, properties: Mapping[str, Any]) -> None:
        from openvino._offline_transformations import paged_attention_transformation

        core = ov.Core()
        graph = core.read_model(directory / "openvino_model.xml")
        paged_attention_transformation(graph)
        _gather_last(graph)
        compiled = core.compile_model(graph, "CPU", {**properties, **COUNTED})
        self.request, self.num_passes = compiled.create_infer_request(), 0
        for port in compiled.inputs:
            if "_cache." in port.get_any_name():
                _, *sizes = (int(str(one)) if one.is_static else 0 for one in port.partial_shape)
                tensor = ov.Tensor(port.get_element_type(), ov.Shape([CACHE_BLOCKS, *sizes]))
                self.request.set_tensor(port, tensor)

    def run(self, size: Size) -> None:
        starts = np.arange(size.rows + 1)
        places = np.tile(np.arange(size.past, size.past + size.length), size.rows)
        wide = {
            "input_ids": np.full(size.rows * size.length, 7, np.int64),
            "position_ids": places.astype(np.int64),
            CHOSEN: (starts[1:] * size.length - 1).astype(np.int64),
        }
        narrow = {
            "past_lens": np.full(size.rows, size.past),
            "subsequence_begins": starts * size.length,
            "block_indices": np.arange(size.rows * size.blocks),
            "block_indices_begins": starts * size.blocks,
            "max_context_len": np.array(size.past + size.length),
        }
        arrays = {**wide, **{name: one.astype(np.int32) for name, one in narrow.items()}}
        for name, array in arrays.items():
            self.request.set_tensor(name, ov.Tensor(array))
        self.request.infer()
        self.num_passes += 1


def _gather_last(graph: ov.Model) -> None:
    """Give `graph` an input with the numbers of the tokens whose logits it computes."""
    node = graph.get_results()[0]
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    chosen = Parameter(ov.Type.i64, ov.PartialShape([-1]))
    chosen.output(0).get_tensor().set_names({CHOSEN})
    rows = opset.gather(node.input_value(0), chosen, opset.constant(np.int64(0)))
    node.input(0).replace_source_output(rows.output(0))
    graph.add_parameters([chosen])
    graph.validate_nodes_and_infer_types()


def _form(node: Any) -> Form:
    """Of a node of a runtime model."""
    about = {name: value.value for name, value in node.get_rt_info().items()}
    kind, kernel = about["layerType"], about["primitiveType"]
    kernel += f" {about['outputLayouts'].split(',')[0]}"
    if kind == "FullyConnected":
        matrix = MATRIX.search(node.get_friendly_name())
        weights = node.input_value(1).get_node().get_rt_info()["outputPrecisions"].value
        return Form(matrix[1] if matrix else kind, f"{kernel}, {weights}")
    return Form(kind, kernel)


def open_both(form: str, paths: Sequence[Path]) -> dict[str, Graph]:
    ours, theirs = paths or (model("ours", form), model("genai", form))
    given = next(each.options for each in CONTENDERS if each.name == f"genai {form}")
    return {"ours": Ours(ours), "genai": GenAIs(theirs, given)}


def compare(
    graphs: Mapping[str, Graph], size: Size, turns: int
) -> tuple[list[list[str]], list[str]]:
    """A row for each kind of node, and one of the whole."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in graphs}
    order = list(graphs)
    for graph in graphs.values():
        graph.run(size)
    before = {name: graph.totals() for name, graph in graphs.items()}
    for _ in range(turns):
        random.shuffle(order)
        for name in order:
            times[name].append(graphs[name].timed(size))
    spent = {name: _since(graph.totals(), before[name], turns) for name, graph in graphs.items()}
    whole = sum(ms for _, ms in spent["ours"].values())
    kinds = {form.kind for found in spent.values() for form in found}
    rows = [_row(size, kind, spent, whole) for kind in kinds]
    rows.sort(key=lambda row: -float(row[4]))
    return rows, _whole(size, times)


def _since(now: Spent, before: Spent, turns: int) -> Spent:
    """Milliseconds of a pass.  Nodes that are not computed every time have a little more."""
    return {
        form: (count, (ms - before.get(form, (0, 0.0))[1]) / turns)
        for form, (count, ms) in now.items()
    }


def _row(size: Size, kind: str, spent: Mapping[str, Spent], whole: float) -> list[str]:
    cells, sums = [], []
    for name in ("ours", "genai"):
        own = [(form, *found) for form, found in spent[name].items() if form.kind == kind]
        cells.append("; ".join(f"{count} {form.kernel}" for form, count, _ in own) or "none")
        sums.append(sum(ms for *_, ms in own))
    ratio = f"{sums[0] / sums[1]:.2f}" if sums[1] > 0 else "-"
    figures = [f"{one:.2f}" for one in sums]
    return [size.name, kind, *cells, *figures, ratio, f"{sums[0] / whole:.1%}"]


def _whole(size: Size, times: Mapping[str, list[tuple[float, float]]]) -> list[str]:
    cells = [f"{1000 * median(seconds for seconds, _ in times[name]):.1f}" for name in times]
    for place in (0, 1):
        pairs = zip(times["ours"], times["genai"], strict=True)
        ratios = [ours[place] / theirs[place] for ours, theirs in pairs]
        low, high = interval(ratios)
        cells.append(f"{median(ratios):.2f}, {low:.2f} to {high:.2f}")
    return [size.name, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_plans")
    parser.add_argument("--form", default="float", help=f"of {', '.join(FORMS)}, by commas")
    parser.add_argument("--sizes", default="1,8,32,p128", help="rows of a step, pN for a prompt")
    parser.add_argument("--turns", type=int, default=20)
    places = {"nargs": 2, "metavar": ("OURS", "GENAIS"), "default": ()}
    parser.add_argument("--models", type=Path, help="a model, and its IR by GenAI", **places)
    given = parser.parse_args()
    found: dict[str, list[list[str]]] = {}
    for form in given.form.split(","):
        graphs, rows, wholes = open_both(form, given.models), list[list[str]](), list[list[str]]()
        for name in given.sizes.split(","):
            some, whole = compare(graphs, Size.of(name), given.turns)
            rows += [row for row in some if max(map(float, row[4:6])) >= LEAST_MS]
            wholes.append(whole)
        print(f"\n{form}, {features()}")
        print_table(["size", "node", "ours", "genai", "ours, ms", "genai", "ratio", "share"], rows)
        print_table(["size", "ours, ms", "genai", "ratio, 95 %", "of processor time"], wholes)
        found[form] = wholes
    print_json("llm_plans", features=features(), found=found)


if __name__ == "__main__":
    main()
