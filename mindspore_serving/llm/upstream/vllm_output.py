"""Reader of the output of a vLLM server: how far its start is, which of its ranks failed first.

Knows no process.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_MAX_LINES = 60  # of each process
_MAX_PROCESSES = 1024
_MAX_LINE = 2000  # characters
_MAX_AGE = 12  # health checks that an error may precede, and be the reason why the server ended
_ENDS = re.compile(rb"[\r\n]+")  # progress bars end with a carriage return
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"\((?P<name>[A-Za-z][\w. =-]*?) pid=(?P<pid>\d+)\)\s*|\[(?P<rank>rank\d+)\]:\s*")
_PID = re.compile(r"\(PID:(\d+), |\[(?:ERROR|CRITICAL)\] \w+\((\d+),")
_ERROR = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception): \S.*|\berror: \S.*|\bE[A-Z]\d{4}: \S.*"
    r"|\w+\(E[A-Z]\d{4}\): \S.*|\[(?:ERROR|CRITICAL)\] \S.*"
)


@dataclass(frozen=True, slots=True)
class State:
    """A state of the start: the lines that begin it, its share, and a text.

    A number in the first group of the pattern is a percentage of the way to `until`.
    """

    pattern: re.Pattern[str]
    share: float
    until: float
    text: str


def _state(pattern: str, share: float, until: float, text: str) -> State:
    return State(re.compile(pattern, re.IGNORECASE), share, until, text)


STATES = (
    _state(r"initializing a v1 llm engine", 0.05, 0.1, "configuring the engine"),
    _state(r"world_size=\d+ rank=\d+|\bhccl\w* init", 0.1, 0.15, "connecting its ranks"),
    _state(r"loading \w+ checkpoint shards: +(\d+)%", 0.15, 0.6, "loading weights"),
    _state(r"starting to load model", 0.15, 0.6, "loading weights"),
    _state(r"(?:loading (?:model )?weights|model loading) took", 0.6, 0.7, "measuring memory"),
    _state(r"capturing \w+ graphs?[^%]*?(\d+)%", 0.8, 0.95, "capturing graphs"),
    _state(r"capturing \w+ graph", 0.8, 0.95, "capturing graphs"),
    _state(r"kv cache (?:size|memory)|# \w+ blocks: \d+", 0.7, 0.75, "warming up"),
    _state(r"torch\.compile|compiling a graph|\bcompil\w+ .*graph", 0.75, 0.8, "compiling graphs"),
    _state(r"init engine .* took", 0.95, 1.0, "starting its HTTP server"),
)
"""States in the order in which a line is tried; the first that matches counts."""

_CANN = "run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` before you start the server"
_ATB = "run `source /usr/local/Ascend/nnal/atb/set_env.sh` before you start the server"
CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"libatb\.so\S*: cannot open",
        f"NNAL (libatb.so) is not in the environment: {_ATB}",
    ),
    (
        r"lib(ascend_hal|dcmi|drvdsmi_host)\.so\S*: cannot open",
        "the libraries of the driver are missing: install the driver, or mount "
        "/usr/local/Ascend/driver into the container",
    ),
    (
        r"lib(ascendcl|hccl|runtime|opapi|ge_\w+|graph|msprofiler|acl_\w+)\.so\S*: cannot open"
        r"|ASCEND_(HOME_PATH|TOOLKIT_HOME|OPP_PATH)\b.*(not|unset|empty)",
        f"CANN is not in the environment: {_CANN}",
    ),
    (
        r"undefined symbol|\baclnn\w+ (or|not) .*lib\w+\.so|has no attribute '_?npu_\w+'"
        r"|No module named '(tbe|te)\b",
        "the versions of CANN, NNAL and the plugin do not belong together: see the table of "
        "versions of `mindspore-serving docs engines_ascend`",
    ),
    (
        r"(davinci|devmm_svm|hisi_hdc|dcmi|drv)\S*.*(permission|operation not permitted|EACCES)"
        r"|permission denied: '/dev/",
        "this user may not use the device: add the user to the group HwHiAiUser, and give a "
        "container /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc",
    ),
    (
        r"\bEL0005\b|\bEJ0001\b|resources are busy|device is (used|occupied)|ret is -8020",
        "the device is in use: end the process that `npu-smi info` lists, wait ten seconds, or "
        "choose another device by ASCEND_RT_VISIBLE_DEVICES",
    ),
    (
        r"\b107001\b|invalid device ?id",
        "there is no such device: `npu-smi info` lists them, and ASCEND_RT_VISIBLE_DEVICES "
        "chooses some",
    ),
    (
        r"out of memory|\bEL0004\b|\b207001\b|no available memory for the cache"
        r"|larger than the (available|maximum number of tokens)",
        "the memory of the device does not suffice: lower --max-model-len or "
        "--llm-option max_num_seqs, or raise --llm-option tensor_parallel",
    ),
    (
        r"\b207008\b|\b207005\b",
        "graphs of too many sizes are captured: name fewer by --engine-option "
        "compilation_config='{\"cudagraph_capture_sizes\": [1, 8]}'",
    ),
    (
        r"\bEI0006\b|\bEI0004\b|HCCL\w* (function )?error",
        "the ranks cannot connect: check HCCL_IF_IP, HCCL_SOCKET_IFNAME and that no rank of an "
        "earlier start still runs",
    ),
    (
        r"bfloat16.*not support|not support.*bfloat16|aclnnCast.*BF16",
        "this device has no bfloat16: use --llm-option dtype=f16",
    ),
    (
        r"failed to infer device type",
        "vLLM cannot load the plugin: CANN or torch-npu is missing; see the lines before",
    ),
)
"""Patterns of errors, and what a person can do; the first that matches counts."""
_CAUSES = tuple((re.compile(pattern, re.IGNORECASE), text) for pattern, text in CAUSES)


@dataclass(slots=True)
class _Process:
    """Output of one process of the server."""

    name: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    error: str = ""  # the first, which is nearest to the cause
    order: int = 0  # of its first error among those of all processes
    age: int = 0  # health checks before it


class EngineOutput:
    """Reader of a server's output.

    `text` and `share` say how far the start is, `num_lines` counts the lines.
    """

    def __init__(self) -> None:
        self.text, self.share, self.num_lines = "starting", 0.0, 0
        self._rest = b""
        self._processes: dict[str, _Process] = {}
        self._names: dict[str, str] = {}  # by process id
        self._num_errors = self._num_checks = 0

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the output; b"" is its end."""
        *lines, self._rest = _ENDS.split((self._rest + data)[-(1 << 18) :])
        if not data:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                self._read(_COLOURS.sub("", line[:_MAX_LINE].decode(errors="replace")).rstrip())

    def note_health(self) -> None:
        """Note that the server is healthy: errors that are minutes old did not end it."""
        self._num_checks += 1

    @property
    def failed(self) -> str:
        """The name of the process that failed first; "" for the server itself."""
        return self._first_failed().name

    def last_lines(self) -> Sequence[str]:
        """Return the last lines of the process that failed first."""
        return tuple(self._first_failed().lines)

    def reason(self) -> str:
        """Return why the server ended, in one line, with what to do if that is known."""
        failed = self._first_failed()
        error = failed.error or next(reversed(failed.lines), "it printed nothing")
        text = f"{failed.name} failed first: {error}" if failed.name else error
        lines = (error, *failed.lines)
        advice = (text for regex, text in _CAUSES if any(map(regex.search, lines)))
        return "; ".join(filter(None, (text, next(advice, ""))))

    def _first_failed(self) -> _Process:
        failed = [process for process in self._processes.values() if self._is_failing(process)]
        if failed:
            return min(failed, key=lambda process: process.order)
        return next(reversed(self._processes.values()), _Process(""))

    def _is_failing(self, process: _Process) -> bool:
        return bool(process.error) and self._num_checks - process.age <= _MAX_AGE

    def _read(self, line: str) -> None:
        self.num_lines += 1
        tag = _TAG.match(line)
        name = self._name(line, tag)
        if name not in self._processes and len(self._processes) >= _MAX_PROCESSES:
            return
        process = self._processes.setdefault(name, _Process(name))
        text = line[tag.end() :] if tag else line
        process.lines.append(text)
        if (error := _ERROR.search(text)) is not None:
            if not self._is_failing(process):
                self._num_errors += 1
                process.error, process.order = error[0][:500], self._num_errors
                process.age = self._num_checks
        elif self._follow(text):
            process.error = ""  # it has gone on

    def _name(self, line: str, tag: re.Match[str] | None) -> str:
        """Return the name of the process that printed `line`; "" for the server itself."""
        if tag is not None:
            name = tag["name"] or tag["rank"]
            if tag["pid"]:
                self._names[tag["pid"]] = name
            return name
        pid = _PID.search(line)
        return "" if pid is None else self._names.get(pid[1] or pid[2], "")

    def _follow(self, text: str) -> bool:
        """Note the state that `text` begins.  Returns False if it begins none."""
        for state in STATES:
            match = state.pattern.search(text)
            if match is None:
                continue
            percent = match[1] if match.re.groups else None
            share = state.share + (state.until - state.share) * int(percent or 0) / 100
            if share >= self.share:
                self.share = share
                self.text = state.text + (f", {percent} %" if percent else "")
            return True
        return False
