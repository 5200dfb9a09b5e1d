"""Process that compares primitives with their goldens on a device, one after the other.

It ends at the first that raises, as a device computes nothing more after an error: its parent
starts another for the rest.  Not verified on hardware but for the CPU.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.mindspore.primitives.cases import (
    TOLERANCES,
    Array,
    PrimitiveCase,
    cases,
    refusals,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import has_bfloat16
from mindspore_serving.llm.runtimes.mindspore.primitives.messages import CaseChecked, DeviceOpened
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready


def open_device(device: str) -> DeviceOpened:
    """Open "ascend" or "cpu" and compute a sum on it.  Raises StartError."""
    from mindspore_serving.llm.runtimes.mindir import library

    mindspore = library.mindspore
    soc, dtype = "", "float32"
    try:
        library.use_device(library.ASCEND if device == "ascend" else library.CPU)
        if device == "ascend":
            soc = library.soc_version()
            dtype = "bfloat16" if has_bfloat16(soc) else "float16"
        total = (mindspore.Tensor(np.ones(4, np.float32)) + 1).asnumpy().sum()
    except StartError:
        raise
    except Exception as error:  # of CANN's libraries
        raise StartError(error_text(error)) from error
    if total != 8:
        raise StartError(f"the device computes 4 * (1 + 1) = {total}")
    return DeviceOpened(soc, mindspore.__version__, dtype)


def check_case(case: PrimitiveCase, filling: str, dtype: str) -> CaseChecked:
    """Run a case and compare it; what the primitive raises is the problem."""
    begin = time.monotonic()
    tolerance = TOLERANCES[dtype]
    try:
        from mindspore_serving.llm.runtimes.mindspore.primitives.selftest_cells import run_case

        got, expected = run_case(case, filling, dtype)
    except Exception as error:
        seconds = time.monotonic() - begin
        return CaseChecked(case.name, float("inf"), tolerance, seconds, error_text(error))
    largest, problem = compare(got, expected, tolerance, case.rounding)
    return CaseChecked(case.name, largest, tolerance, time.monotonic() - begin, problem)


def compare(
    got: Sequence[Array], expected: Sequence[Array], tolerance: float, rounding: int
) -> tuple[float, str]:
    """Return the largest error as a part of the largest number, and the problem or ""."""
    worst = 0.0
    for index, (actual, right) in enumerate(zip(got, expected, strict=True)):
        if actual.shape != right.shape:
            return float("inf"), f"output {index} has shape {actual.shape}, expected {right.shape}"
        if not np.isfinite(actual).all():
            return float("inf"), f"output {index} is not finite"
        difference = float(np.abs(actual.astype(np.float64) - right).max(initial=0))
        if np.issubdtype(right.dtype, np.integer):
            if difference > rounding:
                return difference, f"integers of output {index} differ by up to {difference:g}"
            continue
        largest = float(np.abs(right).max(initial=0)) or 1.0
        worst = max(worst, difference / largest)
        if difference > tolerance * largest:
            return worst, f"output {index} differs by {difference / largest:.2g} of its largest"
    return worst, ""


def run(channel: BlockingChannel[Any], device: str, names: Sequence[str], filling: str) -> None:
    """Check the cases of `names`, from the first to the last or one that raises."""
    try:
        opened = open_device(device)
    except (StartError, ImportError) as error:
        channel.send(Failed(str(error)))
        return
    channel.send(opened)
    for case in cases(opened.dtype):
        if case.name in names:
            refused = refusals(case, opened.dtype, opened.soc) if filling == "ascend" else []
            if refused:  # on a SoC whose primitive wants something else
                channel.send(CaseChecked(case.name, 0.0, 0.0, 0.0, "; ".join(refused)))
                continue
            checked = check_case(case, filling, opened.dtype)
            channel.send(checked)
            if checked.error == float("inf"):
                return
    channel.send(Ready())


def main() -> None:
    """Run the self-test that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--filling", required=True)
    parser.add_argument("--names", required=True)
    arguments = enter(parser)
    channel: BlockingChannel[Any] = BlockingChannel(connect(arguments.channel), Failed)
    with closing(channel):
        run(channel, arguments.device, arguments.names.split(","), arguments.filling)


if __name__ == "__main__":
    main()
