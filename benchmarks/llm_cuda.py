"""How fast the torch runtime decodes on a CUDA device, against what its memory allows.

`python -m benchmarks.llm_cuda [--batches 1,16,64] [--context N] [--tokens N] [--tiny]`

A Llama of 7B shape with random bfloat16 weights, made on the device.  That many sequences of
`--context` tokens each are continued greedily by `--tokens`.  Shown, for each batch, are medians
over the later half of the steps, in which all sequences decode: milliseconds of a step of the
engine, of those the model's, and tokens per second; for batch 1, what share of the measured
bandwidth of copying on the device (bytes read and written) reading every weight once per model step
is; and, if transformers is installed, milliseconds from token to token of its continuous batching
(`generate_batch`) with the same shape, prompts and numbers.  `--tiny` is a model of no interest,
which finds out whether all of this works, on a CPU as well.
"""

import argparse
import sys
import time
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.report import print_json, print_table
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.torch.lora import TorchAdapters
from mindspore_serving.llm.runtimes.torch.opening import start_runner
from mindspore_serving.llm.runtimes.torch.runner import TorchModel, TorchRunner

LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
TINY = LLAMA_7B | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
EMBEDDING = "model.embed_tokens.weight"
COPY_BYTES = 2**31


class RandomWeights:
    """As a checkpoint's weights; of a size at which activations neither grow nor vanish."""

    def __init__(self, spec: ModelSpec, device: str) -> None:
        hidden, inner, q, kv = spec.hidden_size, spec.intermediate_size, spec.q_size, spec.kv_size
        self._shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens": (spec.vocab_size, hidden),
            "lm_head": (spec.vocab_size, hidden),
            "norm": (hidden,),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "q_proj": (q, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, q),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }
        self._generator = torch.Generator(device).manual_seed(0)
        self._made: dict[str, torch.Tensor] = {}

    def has(self, name: str) -> bool:
        return name.endswith(".weight") and name.split(".")[-2] in self._shapes

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._made:
            shape = self._shapes[name.split(".")[-2]]
            device = self._generator.device
            made = torch.empty(shape, dtype=torch.bfloat16, device=device).fill_(1)
            if len(shape) > 1:
                made.normal_(0, shape[1] ** -0.5, generator=self._generator)
            self._made[name] = made
        return self._made[name]

    def clear(self) -> None:
        self._made.clear()

    def bytes_of_a_step(self) -> int:
        """Of all weights but the embeddings, of which a step reads single rows."""
        return sum(w.nbytes for name, w in self._made.items() if name != EMBEDDING)


class TimedRunner:
    """A runner that keeps the seconds that its steps took."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, step: Any) -> Any:
        begin = time.perf_counter()
        logits = self._runner.run(step)  # returns when they are there
        self.seconds.append(time.perf_counter() - begin)
        return logits


def prompts(batch: int, length: int, vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(batch)
    return [rng.integers(3, vocab_size, length).tolist() for _ in range(batch)]


def decode_seconds(
    runner: TorchRunner, config: EngineConfig, asked: list[list[int]], count: int
) -> tuple[float, float]:
    """Of a step of the engine, and of its model, in which all of `asked` decode."""
    timed = TimedRunner(runner)
    engine = Engine(timed, None, config)
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    for index, ids in enumerate(asked):
        engine.add(str(index), ids, params)
    found = []
    while engine.has_work:
        begin = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - begin
        if len(outputs) == len(asked):
            found.append((seconds, timed.seconds[-1]))
    later = found[len(found) // 2 :]
    return median(whole for whole, _ in later), median(model for _, model in later)


def copy_bandwidth(device: str, size: int) -> float:
    """Bytes per second that copying on the device reads and writes."""
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    found = []
    for _ in range(20):
        _synchronize(device)
        begin = time.perf_counter()
        target.copy_(source)
        _synchronize(device)
        found.append(time.perf_counter() - begin)
    return 2 * source.nbytes / median(found)


def transformers_seconds(
    shape: dict[str, Any], device: str, asked: list[list[int]], count: int
) -> float:
    """From one token to the next in transformers' continuous batching."""
    import transformers

    config = transformers.LlamaConfig(**{k: v for k, v in shape.items() if k != "model_type"})
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    generation = transformers.GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    results = model.generate_batch(asked, generation_config=generation, record_timestamps=True)
    gaps = [np.diff(result.timestamps)[count // 2 :] for result in results.values()]
    if len(gaps) != len(asked):
        raise RuntimeError(f"transformers answered {len(gaps)} of {len(asked)} prompts")
    return float(np.median(np.concatenate(gaps)))


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(
    shape: dict[str, Any], device: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A dictionary for each batch."""
    spec, decoder = load_definition(shape)
    weights = RandomWeights(spec, device)
    dtype = torch.bfloat16
    config = EngineConfig(
        device=device,
        max_num_seqs=max(options.batches),
        max_num_batched_tokens=max(512, *options.batches),
        max_model_len=options.context + options.tokens,
        enable_prefix_caching=False,
    )
    runner = start_runner(
        TorchModel(spec, decoder, weights, TorchAdapters(), dtype, dtype, device), config
    )
    bandwidth = copy_bandwidth(device, min(COPY_BYTES, 100 * weights.bytes_of_a_step()))
    found = []
    for batch in options.batches:
        if batch * -(-config.max_model_len // runner.block_size) > runner.num_blocks:
            print(f"batch {batch} is left out: the device's memory does not hold its cache")
            continue
        asked = prompts(batch, options.context, spec.vocab_size)
        step, model = decode_seconds(runner, config, asked, options.tokens)
        found.append({"batch": batch, "step_ms": 1000 * step, "model_ms": 1000 * model})
        found[-1]["tokens_per_second"] = batch / step
        if batch == 1:
            found[-1]["share_of_bandwidth"] = weights.bytes_of_a_step() / model / bandwidth
    runner.close()
    if find_spec("transformers") is not None and device != "cpu":
        for row in found:
            asked = prompts(row["batch"], options.context, spec.vocab_size)
            seconds = transformers_seconds(shape, device, asked, options.tokens)
            row["transformers_ms"] = 1000 * seconds
    return found


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    batches = {"type": lambda text: [int(batch) for batch in text.split(",")]}
    parser.add_argument("--batches", default=[1, 16, 64], **batches)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed(sys.argv[1:])
    has_device = torch.cuda.is_available()
    if not has_device and not options.tiny:
        sys.exit("no CUDA device here: this benchmark needs one (--tiny tries it without)")
    device = "cuda" if has_device else "cpu"
    found = measure(TINY if options.tiny else LLAMA_7B, device, options)
    columns = list(dict.fromkeys(key for row in found for key in row))
    cells = [[f"{row[key]:.4g}" if key in row else "" for key in columns] for row in found]
    print_table(columns, cells)
    name = torch.cuda.get_device_name() if has_device else "cpu"
    print_json("llm_cuda", device=name, found=found)


if __name__ == "__main__":
    main()
