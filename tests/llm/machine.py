"""Files of a machine's memory, under a root directory of a test."""

from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write files by their paths under `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def set_memory(root: Path, *, total: int, available: int, stalled: float = 0.0) -> None:
    """Write the numbers of a machine, in bytes and percent."""
    write_files(
        root,
        {
            "proc/meminfo": f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n",
            "proc/pressure/memory": f"some avg10={stalled:.2f} avg60=0.00 avg300=0.00 total=0\n",
        },
    )
