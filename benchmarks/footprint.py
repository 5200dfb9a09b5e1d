"""What a server of LeNet (MindIR on OpenVINO) needs: seconds to its first answer, and memory.

`python -m benchmarks.footprint [--rounds N]`

Seconds are from starting the process to the first right answer over REST.  Memory is the sum over
all its processes: resident, and proportional (pages that several share are counted once).  How much
an install needs is `scripts/size-of-install lite`.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from statistics import median

from benchmarks.contenders import ours
from benchmarks.processes import HERE, ROOT, free_ports, running
from benchmarks.report import print_json, print_table

FILE = HERE / "servables" / "lenet_mindir" / "1" / "lenet.mindir"
BODY = json.dumps({"instances": [{"image": [[[0.5] * 32] * 32]}]}).encode()


def write_lenet() -> None:
    import mindspore as ms
    from mindspore import nn

    layers = [nn.Conv2d(1, 6, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2)]
    layers += [nn.Conv2d(6, 16, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()]
    layers += [nn.Dense(400, 120), nn.ReLU(), nn.Dense(120, 84), nn.ReLU(), nn.Dense(84, 10)]
    example = ms.Tensor(shape=[None, 1, 32, 32], dtype=ms.float32)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    ms.export(nn.SequentialCell(*layers), example, file_name=str(FILE), file_format="MINDIR")


def descendants() -> list[int]:
    """The processes that this one started, and those that they did."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found, waiting = [], [os.getpid()]
    while waiting:
        parent = waiting.pop()
        children = [child for child, other in parents.items() if other == parent]
        found += children
        waiting += children
    return found


def memory() -> dict[str, float]:
    """MB by kind, "Rss" and "Pss", over all descendants."""
    total = {"Rss": 0.0, "Pss": 0.0}
    for process in descendants():
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in total:
                total[name] += int(rest.split()[0]) * 1024 / 1e6
    return total


def once() -> tuple[float, dict[str, float]]:
    ports = free_ports(2)
    url = f"http://127.0.0.1:{ports[0]}/model/lenet_mindir:predict"

    def ready() -> bool:
        with urllib.request.urlopen(urllib.request.Request(url, BODY), timeout=10) as reply:
            return len(json.load(reply)["instances"][0]["logits"]) == 10

    with running("footprint", [sys.executable, *ours("lenet_mindir")(ports)], ready) as seconds:
        return seconds, memory()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    if not FILE.exists():
        write = [sys.executable, "-c", "import benchmarks.footprint as f; f.write_lenet()"]
        subprocess.run(write, cwd=ROOT, check=True)
    found = [once() for _ in range(rounds)]
    figures = {
        "seconds to the first answer": median(seconds for seconds, _ in found),
        "resident MB": median(sizes["Rss"] for _, sizes in found),
        "proportional MB": median(sizes["Pss"] for _, sizes in found),
    }
    print_table(["LeNet", "median"], [[name, f"{value:.2f}"] for name, value in figures.items()])
    print_json("footprint", rounds=rounds, **figures)


if __name__ == "__main__":
    main()
