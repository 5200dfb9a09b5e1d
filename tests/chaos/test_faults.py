"""Each fault of the table, done to a running server: what must hold, holds."""

import pytest

from tests.chaos.fault import Fault
from tests.chaos.server import Site
from tests.chaos.sharing import Shared
from tests.chaos.table import FAULTS, missing_need


def _to_param(fault: Fault) -> object:
    marks = [] if fault.is_short else [pytest.mark.chaos_long]
    return pytest.param(fault, id=fault.name, marks=marks)


def _server_of(fault: Fault) -> tuple[bool, str, bool]:
    """Faults of one server follow each other, and what ends it comes last."""
    return fault.is_start, repr(fault.site) if fault.site != Site() else "", fault.must.ends


@pytest.mark.parametrize("fault", [_to_param(fault) for fault in sorted(FAULTS, key=_server_of)])
def test_the_server_survives(shared: Shared, fault: Fault) -> None:
    if need := missing_need(fault):
        pytest.skip(f"needs {need}")
    result = shared.run(fault)
    assert not result.problems, result
