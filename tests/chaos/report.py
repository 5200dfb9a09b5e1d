"""`python -m tests.chaos.report`: do every fault of the table, and write what was measured into
docs/reliability.md, between its markers.

--only WORDS does the faults whose names have WORDS, and prints the rows only.
"""

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.fault import Fault, Result
from tests.chaos.sharing import Shared
from tests.chaos.table import FAULTS, missing_need
from tests.e2e.harness import ROOT

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEAD = (
    "| fault | time to answer | hung | orphans | next request | memory back | |",
    "|---|---|---|---|---|---|---|",
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.report")
    parser.add_argument("--only", default="", metavar="WORDS")
    options = parser.parse_args(arguments)
    rows, num_bad = [], 0
    for fault, result in measure([each for each in FAULTS if options.only in each.name]):
        rows.append(to_row(fault, result))
        num_bad += bool(result.problems)
        print(rows[-1], dict(result.codes), flush=True)
        for problem in result.problems:
            print(f"    {problem}", flush=True)
    if not options.only:
        write(rows)
    print(f"{len(rows)} faults, {num_bad} do not hold")
    return int(num_bad > 0)


def measure(faults: Sequence[Fault]) -> Iterator[tuple[Fault, Result]]:
    """Do them one after another; those that this machine cannot do are left out."""
    with tempfile.TemporaryDirectory() as place:
        shared = Shared(Path(place))
        try:
            for fault in faults:
                if need := missing_need(fault):
                    print(f"left out, it needs {need}: {fault.name}", flush=True)
                else:
                    yield fault, _result(shared, fault)
        finally:
            shared.close()


def _result(shared: Shared, fault: Fault) -> Result:
    """Also of a fault that cannot be done, so that the others are."""
    try:
        return shared.run(fault)
    except (AssertionError, OSError) as error:
        return Result(fault.name, problems=[f"it was not done: {error!r}"])


def to_row(fault: Fault, result: Result) -> str:
    """A row of the table."""
    if result.has_ended:
        following = "(ended)"
    elif result.to_right is None:
        following = "never right"
    else:
        following = "right" if result.to_right < 1 else f"right after {result.to_right:.1f} s"
    is_back = not any("memory of" in problem for problem in result.problems)
    cells = (
        fault.name,
        "-" if result.to_answer is None else f"{max(0.0, result.to_answer):.2f} s",
        str(result.num_hung),
        str(result.num_left),
        following,
        "-" if result.has_ended else "yes" if is_back else f"no, {result.growth >> 20} MiB more",
        "" if not result.problems else f"does not hold: {result.problems[0].splitlines()[0]}",
    )
    return f"| {' | '.join(cells)} |"


def write(rows: Sequence[str]) -> None:
    """Put the table into the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    num_bad = sum("does not hold" in row for row in rows)
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    held = f"{num_bad} do not hold" if num_bad else "all hold"
    title = f"{len(rows)} of {len(FAULTS)} faults were done on {where}; {held}:"
    text = "\n".join((BEGIN, title, "", *HEAD, *rows, END))
    PAGE.write_text(before + text + after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
