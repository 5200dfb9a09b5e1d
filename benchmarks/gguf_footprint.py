"""Memory of a server of a GGUF file, by process and kind of page, after four short answers.

    python -m benchmarks.gguf_footprint FILE[@OPTIONS] ... [--context 4096] [--wait 0]

OPTIONS are those of `serve`, without dashes and by commas: `model.gguf@memory=low`.  The first
server of each compiles kernels, if they are not kept, and is not counted.  MB are proportional
(PSS): a page that several processes share is counted once.  "model" are pages of the mapped file,
"own" is anonymous memory, "libraries" are pages of other files.  "beside" is all but the model, and
keys and values (`serving_llm_cache_bytes`): the aim for `--memory low` is 120 MB.  `--wait` are
seconds before the last answer, in which the runtime "combined" packs.
"""

import argparse
import json
import os
import re
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

from benchmarks.footprint import descendants
from benchmarks.processes import free_ports, running
from benchmarks.report import print_json, print_table

MB = 1e6
ANSWERS, TOKENS = 4, 64
KINDS = ("model", "own", "libraries")
ROLES = {"mindspore_serving.worker": "worker", "processing": "preparing", "serve": "master"}
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)")


def memory(process: int, model: Path) -> Counter[str]:
    """Return the MB of a process by KINDS."""
    sizes: Counter[str] = Counter()
    kind = "own"
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        mapping = _MAPPING.fullmatch(line)
        name, _, rest = line.partition(":")
        if mapping:
            path = mapping[1]
            is_file = path.startswith("/") and "(deleted)" not in path
            kind = "model" if path == str(model) else "libraries" if is_file else "own"
        elif name == "Pss":
            sizes[kind] += int(rest.split()[0]) * 1024 / MB
        elif name == "Pss_Anon":  # also pages of a library that the process has written
            sizes["own"] += int(rest.split()[0]) * 1024 / MB
            sizes[kind] -= int(rest.split()[0]) * 1024 / MB
    return sizes


def role(process: int) -> str:
    words = Path(f"/proc/{process}/cmdline").read_text()
    return next((role for word, role in ROLES.items() if word in words), "other")


def served(text: str, context: int, wait: float) -> dict[str, Counter[str]]:
    """Return the MB by role and kind; of the role "cache" its bytes in MB as "own"."""
    name, _, options = text.partition("@")
    path = Path(name).resolve()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"

    def complete(tokens: int) -> bool:
        body = {"model": path.stem, "prompt": "Hello, the", "max_tokens": tokens}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return bool(json.load(reply)["choices"])

    command = [sys.executable, "-m", "mindspore_serving", "serve", str(path), "--no-grpc"]
    command += ["--http-port", str(port), "--llm-option", f"max_model_len={context}"]
    command += [f"--{option}" for option in options.split(",") if option]
    sizes: dict[str, Counter[str]] = {}
    with running("gguf_footprint", command, lambda: complete(1), limit=300):
        for _ in range(ANSWERS - 1):
            complete(TOKENS)
        time.sleep(wait)
        complete(TOKENS)
        for process in descendants():
            sizes.setdefault(role(process), Counter()).update(memory(process, path))
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
    cache = next(line for line in lines if line.startswith("serving_llm_cache_bytes{"))
    sizes["cache"] = Counter(own=float(cache.split()[-1]) / MB)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gguf_footprint")
    parser.add_argument("paths", nargs="+", metavar="FILE[@OPTIONS]")
    parser.add_argument("--context", type=int, default=4096, help="max_model_len")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds")
    asked = parser.parse_args()
    rows, results = [], {}
    for text in asked.paths:
        served(text, asked.context, 0.0)
        sizes = served(text, asked.context, asked.wait)
        cache = sizes.pop("cache")["own"]
        total = sum(sizes.values(), Counter())
        name = os.path.basename(text)
        for each, kinds in {**sizes, "together": total}.items():
            cells = [f"{kinds[kind]:.0f}" for kind in KINDS]
            rows.append([f"{name}, {each}", *cells, f"{kinds.total():.0f}", ""])
        beside = total.total() - total["model"] - cache
        rows[-1][-1] = f"{beside:.0f} (and {cache:.0f} of keys and values)"
        results[name] = {**sizes, "beside": beside, "cache": cache}
    print_table(["", *KINDS, "together", "beside"], rows)
    print_json("gguf_footprint", **results)


if __name__ == "__main__":
    main()
