"""The environments have what tests/engines/environments.txt names, so that is what is tested."""

import json
import subprocess

import pytest

from tests.e2e.harness import ROOT
from tests.engines.served import KINDS, Kind, environment

LIST = ROOT / "tests" / "engines" / "environments.txt"
VERSIONS = "import json, sys; from importlib.metadata import version; "
VERSIONS += "print(json.dumps([f'{one}=={version(one)}' for one in sys.argv[1:]]))"
ROWS = {name: pins for name, *pins in map(str.split, LIST.read_text().splitlines())}


def test_every_engine_has_an_environment_in_which_all_is_pinned() -> None:
    assert set(ROWS) == {kind.engine for kind in KINDS} - {"ours"}
    assert all("==" in pin for pins in ROWS.values() for pin in pins)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.engine)
def test_an_environment_has_the_versions_that_are_pinned(kind: Kind) -> None:
    pins = ROWS[kind.engine]
    names = [pin.partition("==")[0] for pin in pins]
    found = subprocess.check_output([environment(kind), "-c", VERSIONS, *names], text=True)
    assert json.loads(found) == pins, "make it again: scripts/engine-environments"
