"""Processor time of a mixture's step beside that of a dense model with as many active weights.

    python -m benchmarks.mixtures [--form float|int8|int4] [--options runtime=native]
        [--streams 1,4,16] [--prompt 256] [--rounds 8]

Random weights of a moderate size, written to benchmarks/.cache/mixtures/; the dense model has the
same attention (or Mamba layers), and feed-forward blocks as wide as the experts of a token
together.  Processor time of all threads, of compiled models in turns, as `llm_steps` prints it:
the dense model comes first, so the ratio of the second line is that of the mixture to it.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.processes import HERE, ROOT

PLACE = HERE / ".cache" / "mixtures"
HIDDEN, WIDE, EXPERTS, CHOSEN = 1024, 768, 32, 4
COMMON: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": HIDDEN, "num_hidden_layers": 6, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    **COMMON, "num_hidden_layers": 18, "mamba_num_heads": 16, "mamba_head_dim": 64,
    "ssm_state_size": 64, "n_groups": 2, "chunk_size": 64,
}  # fmt: skip
MODELS: dict[str, tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "gpt-oss": (
        ("Llama", {**COMMON, "intermediate_size": WIDE * CHOSEN}),
        (
            "GptOss",
            {**COMMON, "intermediate_size": WIDE, "num_local_experts": EXPERTS,
             "num_experts_per_tok": CHOSEN, "layer_types": ["full_attention"] * 6},
        ),
    ),
    "qwen3-moe": (
        ("Qwen3", {**COMMON, "num_hidden_layers": 2, "intermediate_size": WIDE * CHOSEN}),
        (
            "Qwen3Moe",
            {**COMMON, "num_hidden_layers": 2, "intermediate_size": WIDE,
             "moe_intermediate_size": WIDE, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN,
             "norm_topk_prob": True},
        ),
    ),
    "llama4": (
        ("Llama", {**COMMON, "intermediate_size": 2 * WIDE * CHOSEN}),
        (
            "Llama4",
            {**COMMON, "intermediate_size": WIDE * CHOSEN, "num_local_experts": 16,
             "num_experts_per_tok": 1, "intermediate_size_mlp": WIDE * CHOSEN,
             "interleave_moe_layer_step": 1, "attention_chunk_size": 4096},
        ),
    ),
    "nemotron-h": (
        (
            "NemotronH",
            {**NEMOTRON, "hybrid_override_pattern": "M-M-*-" * 3,
             "intermediate_size": WIDE * (CHOSEN + 1)},
        ),
        (
            "NemotronH",
            {**NEMOTRON, "hybrid_override_pattern": "MEME*E" * 3, "n_routed_experts": EXPERTS,
             "num_experts_per_tok": CHOSEN, "moe_intermediate_size": WIDE,
             "moe_shared_expert_intermediate_size": WIDE, "n_group": 1, "topk_group": 1},
        ),
    ),
}  # fmt: skip


def directory(name: str, kind: str, form: str, *, hot: int = 0) -> Path:
    """The checkpoint, written now if it is not there.

    `hot` experts of a layer get more tokens than others, by longer rows of the router.
    """
    family, settings = MODELS[name][kind == "mixture"]
    target = PLACE / f"{name}-{kind}{f'-{hot}-hot' if hot else ''}"
    if not target.exists():
        _write(family, settings, target, hot)
    if form == "float":
        return target
    quantised = target.with_name(f"{target.name}-{form}")
    if not quantised.exists():
        from mindspore_serving.llm.quantize import quantize

        quantize(target, quantised, form)
    return quantised


def _write(family: str, settings: dict[str, Any], target: Path, hot: int) -> None:
    import torch
    import transformers

    name = f"{family}TextConfig" if family == "Llama4" else f"{family}Config"
    config = getattr(transformers, name)(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    for name, parameter in model.named_parameters():
        if hot and name.endswith("mlp.gate.weight"):
            parameter.data[: 2 * hot : 2] *= 4  # those that one of two ranks has by default
    model.save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--form", choices=("float", "int8", "int4"), default="int8")
    parser.add_argument("--options", default="", help="of both models, as those of llm_steps")
    given, remaining = parser.parse_known_args()
    for name in given.models:
        pair = [str(directory(name, kind, given.form)) for kind in ("dense", "mixture")]
        if given.options:
            pair = [f"{path}@{given.options}" for path in pair]
        print(f"{name}, {given.form} {given.options}", flush=True)
        command = [sys.executable, "-m", "benchmarks.llm_steps", *pair, *remaining]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
