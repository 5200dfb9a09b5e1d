"""`python -m tests.fuzz --requests 100000 --seed 1`: send requests that are made of the seeds, and
report what is wrong with the answers and with the server.

The same seed sends the same requests.  Each finding is a file below --out; `--replay FILE ...`
sends files again, one after another.  Files of findings go to tests/fuzz/seeds/PROTOCOL, as
found-NAME.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from tests.fuzz import campaign, known
from tests.fuzz.campaign import Campaign, Finding
from tests.fuzz.case import PROTOCOLS, read
from tests.fuzz.logs import IN_THE_LOG
from tests.fuzz.making import Maker

_CHUNK = 2000  # cases that are made at once


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    with tempfile.TemporaryDirectory() as place:
        server = campaign.start(Path(place))
        try:
            if options.replay:
                return _replay(server, options.replay)
            return _run(server, options)
        finally:
            server.close()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS, help="only this one")
    parser.add_argument("--singly", action="store_true", help="look at the server behind each one")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), metavar="DIRECTORY")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE")
    return parser.parse_args(arguments)


def _run(server: campaign.Server, options: argparse.Namespace) -> int:
    maker = Maker(options.seed, options.protocol or PROTOCOLS)
    running = Campaign(server, known.matches, is_single=options.singly)
    numbers = range(options.first, options.first + options.requests)
    with tqdm(total=options.requests, unit="request", smoothing=0.05) as bar:
        for start in range(0, len(numbers), _CHUNK):
            made = [maker.make(number) for number in numbers[start : start + _CHUNK]]
            cases = [case for case in made if not known.is_skipped(case)]
            num_found = len(running.report.findings)
            asyncio.run(running.run(cases, bar.update))
            for finding in _narrowed(server, running.report.findings[num_found:]):
                bar.write(f"{finding}{_write(finding, options.out)}")
            if not server.is_running:
                break
    running.finish()
    report = running.report
    print(f"{report.num_sent} requests, seed {options.seed}: {len(report.findings)} findings")
    print(", ".join(f"{code}: {count}" for code, count in sorted(report.codes.items())))
    print(
        f"slowest {report.slowest[0]:.2f} s ({report.slowest[1]}), {report.growth >> 20} MiB more"
    )
    for finding in report.findings:
        print(f"  {finding}")
    return int(bool(report.findings))


def _narrowed(server: campaign.Server, findings: Sequence[Finding]) -> list[Finding]:
    """`findings`, and those of one case that is found by sending again what was sent before a
    traceback came into the log."""
    running = Campaign(server, known.matches, is_single=True)
    blocks = {each.cases for each in findings if each.problem.startswith(IN_THE_LOG)}
    for cases in blocks:
        if len(cases) > 1 and server.is_running:
            asyncio.run(running.run(cases))
    return [*findings, *running.report.findings]


def _write(finding: Finding, out: Path) -> str:
    """Write the file of a finding that one case made; which it is."""
    if len(finding.cases) != 1:
        return ""
    (case,) = finding.cases
    return f"\n    {case.write(out, case.origin.replace(' ', '-'))}"


def _replay(server: campaign.Server, paths: Sequence[Path]) -> int:
    running = Campaign(server, is_single=True)
    num_bad = 0
    for path in paths:
        asyncio.run(running.run([read(path)]))
        found = running.report.findings
        num_bad += bool(found)
        print(f"{path}: {'wrong' if found else 'right'}")
        for finding in found:
            print(f"    {finding.problem}\n{finding.answer}")
        found.clear()
    return int(num_bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
