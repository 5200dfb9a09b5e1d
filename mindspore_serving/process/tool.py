"""Programs of the system that print what they know and end, such as `npu-smi`."""

import subprocess
from collections.abc import Sequence


def output_of(words: Sequence[str], seconds: float = 20.0) -> str:
    """Return what the program prints; "" if it is missing, fails or takes over `seconds`."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout
