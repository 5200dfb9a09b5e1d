"""MindSpore's front end compiles a graph of the device's filling of every row, on a CPU."""

import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore.common.api import _cell_graph_executor  # noqa: E402

from mindspore_serving.llm.runtimes.mindir.library import mindspore  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make  # noqa: E402
from tests.llm.runtimes.primitives.test_contracts import RIGHT  # noqa: E402


class DeviceCall(mindspore.nn.Cell):
    """A graph of one primitive."""

    def __init__(self, name, options):
        super().__init__()
        self.primitive = make(name, "ascend", **options)

    def construct(self, *arguments):
        return self.primitive(*arguments)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_the_front_end_compiles_the_device_filling(name):
    options, arguments = RIGHT[name]
    specs = [
        spec and mindspore.Tensor(shape=list(spec.shape), dtype=getattr(mindspore, spec.dtype))
        for spec in arguments.values()
    ]
    graph = _cell_graph_executor.compile(
        DeviceCall(name, options), *specs, phase=f"export.{name}", do_convert=False
    )
    assert graph


def test_every_row_has_a_call_that_its_contract_accepts():
    assert set(RIGHT) == set(PRIMITIVES)
