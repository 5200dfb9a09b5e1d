"""`mindspore-serving ascend-check`: the installation, and the device's operators against numpy.

It prints a report that a person can send, and writes the same as JSON.  Not verified on hardware.
"""

import json
import math
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from mindspore_serving import __version__
from mindspore_serving.backends import ascend_installation
from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.tool_settings import AscendCheckSettings
from mindspore_serving.errors import InvalidInputs, StartError, reason
from mindspore_serving.llm.runtimes.mindspore.primitives import NONE, named_primitives
from mindspore_serving.llm.runtimes.mindspore.primitives.messages import (
    CaseChecked,
    DeviceOpened,
    ModelCompared,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.selftest import (
    ALL_REDUCE_MODULE,
    ASCEND,
    COMPOSED,
    MODEL_MODULE,
    MODULE,
    SelfTest,
    check_all_reduce,
    check_model,
)

FORMAT = 1  # of the JSON
MAX_DEVICES = 64  # as ranks of a model
_COLUMNS = "{:<24} {:<8} {:>9} {:>9} {:>8}  {}"


def run(
    settings: AscendCheckSettings,
    *,
    module: str = MODULE,
    model_module: str = MODEL_MODULE,
    all_reduce_module: str = ALL_REDUCE_MODULE,
) -> int:
    """Print the report; return 1 if no device can be used, or an operator or the model differs.

    `module` is the program that compares the operators, `model_module` that of the model, and
    `all_reduce_module` that of each rank.

    Raises InvalidInputs for unknown primitives or too many devices, StartError if the report cannot
    be written.
    """
    if not 1 <= settings.devices <= MAX_DEVICES:
        raise InvalidInputs(f"--devices is {settings.devices}, expected 1 to {MAX_DEVICES}")
    self_test = SelfTest(
        settings.device,
        ASCEND if settings.device == "ascend" else COMPOSED,
        settings.deadline,
        module,
        tuple(_names(settings.primitives)),
    )
    report = _Report(self_test, model_module if settings.model else "")
    for line in report.lines():
        print(line, flush=True)
    is_usable = "primitives" in report.content and "problem" not in report.content
    if settings.devices > 1 and is_usable:
        for line in report.all_reduces(settings.devices, all_reduce_module):
            print(line, flush=True)
    if settings.json is not None:
        _write(Path(settings.json), report.content)
    return int(not report.content["passed"])


def _names(names: str) -> frozenset[str]:
    try:
        return named_primitives(names)
    except StartError as error:
        raise InvalidInputs(f"--primitives: {error}") from None


def _write(file: Path, content: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise StartError(f"cannot write the report {file}: {reason(error)}") from error


class _Report:
    """The checks, as lines while they run; `content` is the JSON of what was done so far."""

    def __init__(self, self_test: SelfTest, model_module: str) -> None:
        self._self_test = self_test
        self._model_module = model_module
        self._opened: DeviceOpened | None = None
        self.content: dict[str, Any] = {
            "format": FORMAT,
            "mindspore_serving": __version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "device": self_test.device,
            "passed": False,
        }

    def lines(self) -> Iterator[str]:
        """Iterate over the lines of the report, each as soon as it is known."""
        yield (
            f"mindspore-serving {__version__}, Python {platform.python_version()}, "
            f"{platform.system()} {platform.machine()}"
        )
        if self._self_test.device == "ascend":
            yield from self._installation()
            if any(finding["is_fatal"] for finding in self.content["findings"]):
                return
        yield from self._primitives()
        if self._model_module and "problem" not in self.content:
            yield ""
            try:
                yield from self._model()
            except StartError as error:
                self.content |= {"passed": False, "problem": str(error)}
                yield f"problem: the small model failed: {error}"

    def all_reduces(self, num_ranks: int, module: str) -> Iterator[str]:
        """Iterate over the lines of all-reduces by `num_ranks` devices."""
        self.content["all_reduce"] = []
        yield ""
        try:
            test = self._self_test
            for result in check_all_reduce(test.device, num_ranks, test.deadline, module):
                self.content["passed"] &= result.is_right
                self.content["all_reduce"].append(msgspec.structs.asdict(result))
                yield (
                    f"all-reduce of {result.num_bytes >> 10} KiB over {num_ranks} ranks: "
                    f"{'right' if result.is_right else 'WRONG'}, {result.seconds * 1e3:.3f} ms, "
                    f"{result.num_bytes / result.seconds / 1e9:.2f} GB/s"
                )
        except StartError as error:
            self.content |= {"passed": False, "problem": str(error)}
            yield f"problem: the all-reduce over {num_ranks} ranks failed: {error}"

    def _model(self) -> Iterator[str]:
        test, composed = self._self_test, self.content["composed_primitives"]
        self.content["streams"] = []
        for result in check_model(test.device, composed, test.deadline, self._model_module):
            if isinstance(result, ModelCompared):
                is_close = result.error <= result.tolerance
                self.content["passed"] &= is_close
                error = result.error if math.isfinite(result.error) else None
                fields = msgspec.structs.asdict(result)
                self.content["model"] = {**fields, "error": error, "is_close": is_close}
                yield (
                    f"a small model {'equals' if is_close else 'DIFFERS from'} numpy: error "
                    f"{result.error:.1e} of {result.tolerance:.0e}, {result.equal} of "
                    f"{result.count} tokens equal"
                )
            else:
                self.content["streams"].append(msgspec.structs.asdict(result))
                yield (
                    f"{result.streams} streams: {result.tokens_per_second:.1f} tokens/s, "
                    f"{result.share:.0%} of the bandwidth of memory"
                )

    def _installation(self) -> Iterator[str]:
        installation = ascend_installation.read_installation()
        facts = asdict(installation)
        self.content["findings"] = facts.pop("findings")
        self.content["installation"] = facts
        if installation.is_present:
            yield from table([*ascend_installation.rows(installation)])
        for finding in installation.findings:
            yield f"{'problem' if finding.is_fatal else 'note'}: {finding.text}"

    def _primitives(self) -> Iterator[str]:
        rows: list[CaseChecked] = []
        self.content["primitives"] = []
        results = self._self_test.run(self._open)
        try:
            for checked in results:
                if not rows:
                    yield from self._header()
                rows.append(checked)
                self.content["primitives"].append(_as_json(checked))
                yield _row(checked)
        except StartError as error:
            self.content["problem"] = str(error)
            yield f"problem: {error}"
            return
        yield from self._summary(rows)

    def _open(self, opened: DeviceOpened) -> None:
        self._opened = opened

    def _header(self) -> Iterator[str]:
        if self._opened is not None:
            self.content |= {
                "soc": self._opened.soc,
                "mindspore": self._opened.mindspore,
                "dtype": self._opened.dtype,
            }
            soc = self._opened.soc or "the CPU"
            yield ""
            yield f"operators on {soc}, MindSpore {self._opened.mindspore}, {self._opened.dtype}"
        yield _COLUMNS.format("primitive", "result", "error", "tolerance", "seconds", "").rstrip()

    def _summary(self, rows: list[CaseChecked]) -> Iterator[str]:
        wrong = list(dict.fromkeys(row.name for row in rows if row.problem))
        self.content["passed"] = not wrong
        self.content["composed_primitives"] = ",".join(wrong) or NONE
        count = len({row.name for row in rows})
        yield ""
        yield f"{count - len(wrong)} of {count} primitives equal numpy"
        if wrong and self._self_test.filling == ASCEND:
            yield (
                "a server computes the others by plain operators: it finds them at its start, or "
                f"takes them from --llm-option composed_primitives={','.join(wrong)}"
            )
        if self._self_test.filling == COMPOSED:
            yield "these were the operators that replace the device's; no device was used"


def _as_json(checked: CaseChecked) -> dict[str, Any]:
    """Return a row of the JSON, where a number that is not finite is null."""
    return {
        "name": checked.name,
        "equal": not checked.problem,
        "error": checked.error if math.isfinite(checked.error) else None,
        "tolerance": checked.tolerance,
        "seconds": round(checked.seconds, 3),
        "problem": checked.problem,
    }


def _row(checked: CaseChecked) -> str:
    error = "-" if checked.error == float("inf") else f"{checked.error:.1e}"
    seconds = f"{checked.seconds:.2f}"
    result = "WRONG" if checked.problem else "equal"
    limit = f"{checked.tolerance:.0e}"
    return _COLUMNS.format(checked.name, result, error, limit, seconds, checked.problem).rstrip()
