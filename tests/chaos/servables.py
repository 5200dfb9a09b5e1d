"""What the servers of the chaos suite serve.

`toy` has a method for everything that a stage can do wrong, in two workers; `good` is an innocent
servable beside it, in one; `tiny` is the example language model.
"""

from pathlib import Path

from tests.e2e.harness import ROOT, write_servable

TINY_MODEL = ROOT / "examples" / "tiny_llm" / "model"
HOLD = "hold"  # while this file is there, workers of `toy` that load do not finish

GOOD = """
@method("y")
def double(x):
    return x * 2
"""
TOY = (
    GOOD
    + """
import ctypes, select, signal, subprocess, sys, threading
MIB = 1 << 20

def wait(seconds):  # time.sleep fails under libfaketime: EINVAL
    select.select([], [], [], seconds)

while os.path.exists("hold"):
    wait(0.01)
"""
)
# One stage a method, of its name; a method has the input x and the output y.
STAGES = {
    "nap": "wait(float(x))\nreturn x",
    "count": 'for n in range(int(x)):\n    wait(0.02)\n    yield "%d " % n',
    "pour": 'while True:\n    yield "x" * 65536',
    "loop": "while True:\n    pass",
    "hold_gil": "ctypes.PyDLL(None).usleep(int(float(x) * 1e6))\nreturn x",
    "raise_exit": "sys.exit(int(x))",
    "exit_now": "os._exit(int(x))",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "recurse": "return recurse(x)",
    "interrupt": "raise KeyboardInterrupt",
    "leave_child": 'return subprocess.Popen(["sleep", "600"]).pid',
    "leave_fork": (
        "pid = os.fork()\nif pid:\n    return pid\nif x:\n    os.setsid()\n"
        "while True:\n    wait(600)"
    ),
    "leave_thread": "threading.Thread(target=time.sleep, args=[600]).start()\nreturn x",
    "allocate": "held = bytearray(int(x) * MIB)\nheld[::4096] = bytes(len(held[::4096]))\nreturn x",
    "say": 'print("x" * int(x), flush=True)\nreturn x',
    "close_files": "os.closerange(3, 4096)\nreturn x",
    "kill_parent": "os.kill(os.getppid(), signal.SIGTERM)\nreturn x",
    "open_files": "held = [open(os.devnull) for _ in range(int(x))]\nreturn x",
    "echo": "return x",
}


def _method(name: str, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f'@method("y")\ndef {name}(x):\n{lines}'


def build(directory: Path) -> Path:
    """The servables, below `directory`; harmless if they are there."""
    if (directory / "tiny").exists():
        return directory
    toy = TOY + "".join(_method(name, body) for name, body in STAGES.items())
    write_servable(directory, "toy", toy)
    write_servable(directory, "good", GOOD)
    (directory / "tiny").symlink_to(TINY_MODEL)
    return directory
