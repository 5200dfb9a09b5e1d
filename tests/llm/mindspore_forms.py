"""Checkpoints in the forms that MindFormers and MindSpore write, from one of Hugging Face's.

Files are written by MindSpore; rows of fused matrices are ordered by plain loops over heads.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]

OLD_NAMES = {
    "model.embed_tokens.weight": "model.tok_embeddings.embedding_weight",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.norm": "model.norm_out",
}
MCORE_NAMES = {
    "model.embed_tokens": "embedding.word_embeddings",
    "model.layers": "decoder.layers",
    "model.norm": "decoder.final_layernorm",
    "lm_head": "output_layer",
    "self_attn.q_proj": "self_attention.linear_q",
    "self_attn.k_proj": "self_attention.linear_k",
    "self_attn.v_proj": "self_attention.linear_v",
    "self_attn.o_proj": "self_attention.linear_proj",
    "self_attn.q_norm": "self_attention.q_layernorm",
    "self_attn.k_norm": "self_attention.k_layernorm",
    "mlp.gate.weight": "mlp.router.weight",
    "gate_proj": "gating",
    "up_proj": "hidden",
    "down_proj": "linear_fc2",
    "post_attention_layernorm": "pre_mlp_layernorm",
}


def renamed(arrays: Arrays, names: Mapping[str, str]) -> Arrays:
    result = {}
    for name, array in arrays.items():
        for old, new in names.items():
            name = name.replace(old, new)
        result[name] = array
    return result


def heads_in_turn(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    """For each key-value head the rows of its queries, its key and its value."""
    rows = []
    for group in range(groups):
        for part in (q, k, v):
            size = len(part) // groups
            rows += [part[group * size + i] for i in range(size)]
    return np.stack(rows)


def rows_in_turn(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.stack([row for pair in zip(gate, up, strict=True) for row in pair])


def fused(arrays: Arrays, groups: int, *, in_turn: bool, mcore: bool) -> Arrays:
    """Queries, keys and values in one matrix, gates and hidden states in another."""
    qkv = ("linear_q", "linear_k", "linear_v") if mcore else ("wq", "wk", "wv")
    gates = ("gating", "hidden") if mcore else ("w1", "w3")
    result = {}
    for name, array in arrays.items():
        module = name.split(".")[-2]
        if module == qkv[0]:
            parts = [arrays[name.replace(f".{qkv[0]}.", f".{part}.")] for part in qkv]
            joined = heads_in_turn(*parts, groups) if in_turn else np.concatenate(parts)
            new = "linear_qkv" if mcore else "w_qkv"
            result[name.replace(f".{qkv[0]}.", f".{new}.")] = joined
        elif module == gates[0] and ".experts." not in name:
            other = arrays[name.replace(f".{gates[0]}.", f".{gates[1]}.")]
            joined = rows_in_turn(array, other) if in_turn else np.concatenate([array, other])
            new = "linear_fc1" if mcore else "w_gate_hidden"
            result[name.replace(f".{gates[0]}.", f".{new}.")] = joined
        elif module not in (*qkv, *gates) or ".experts." in name:
            result[name] = array
    return result


def stacked_experts(arrays: Arrays) -> Arrays:
    """`weight1` [experts * inputs, gates and hidden] and `weight2` of all experts of a layer."""
    result = {name: array for name, array in arrays.items() if ".experts." not in name}
    stems = {name.partition(".experts.")[0] for name in arrays if ".experts." in name}
    for stem in sorted(stems):
        first, second = [], []
        while f"{stem}.experts.{len(first)}.gating.weight" in arrays:
            expert = f"{stem}.experts.{len(first)}"
            gate, up = (arrays[f"{expert}.{part}.weight"] for part in ("gating", "hidden"))
            first.append(np.concatenate([gate, up]).T)
            second.append(arrays[f"{expert}.linear_fc2.weight"].T)
        result[f"{stem}.experts.weight1"] = np.concatenate(first)
        result[f"{stem}.experts.weight2"] = np.concatenate(second)
    return result


def save(path: Path, arrays: Mapping[str, np.ndarray], **options: Any) -> None:
    import mindspore

    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = [{"name": n, "data": mindspore.Tensor(a)} for n, a in arrays.items()]
    mindspore.save_checkpoint(parameters, str(path), **options)


def copied(source: Path, target: Path, **settings: Any) -> Arrays:
    """The tensors of `source`; its other files go to `target`, with more settings."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **settings}))
    return load_file(source / "model.safetensors")


def groups_of(directory: Path) -> int:
    return int(json.loads((directory / "config.json").read_text())["num_key_value_heads"])


def old_names(source: Path, target: Path) -> None:
    arrays = renamed(copied(source, target), OLD_NAMES)
    save(target / "llama.safetensors", arrays, format="safetensors")


def old_fused(source: Path, target: Path) -> None:
    arrays = renamed(copied(source, target), OLD_NAMES)
    arrays = fused(arrays, groups_of(source), in_turn=True, mcore=False)
    save(target / "llama.safetensors", arrays, format="safetensors")


def old_fused_in_parts(source: Path, target: Path) -> None:
    """As MindFormers' inference had them."""
    flags = {
        "use_contiguous_weight_layout_attention": True,
        "use_interleaved_weight_layout_mlp": False,
    }
    arrays = renamed(copied(source, target, **flags), OLD_NAMES)
    arrays = fused(arrays, groups_of(source), in_turn=False, mcore=False)
    save(target / "llama.ckpt", arrays)


def mcore(source: Path, target: Path) -> None:
    arrays = renamed(copied(source, target), MCORE_NAMES)
    save(target / "model.safetensors", arrays, format="safetensors")


def mcore_fused(source: Path, target: Path) -> None:
    arrays = stacked_experts(renamed(copied(source, target), MCORE_NAMES))
    arrays = fused(arrays, groups_of(source), in_turn=True, mcore=True)
    save(target / "model.safetensors", arrays, format="safetensors")


def write_strategy(path: Path, stage: int, layouts: Mapping[str, tuple[Any, ...]]) -> None:
    """`layouts` are (devices, tensor map, optimizer step, optimizer size) of each parameter; a map
    has lists where several axes of devices cut an axis of the tensor."""
    from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

    message = ParallelStrategyMap(current_stage=0)
    operator = message.parallel_strategy_item.add(node_name="MatMul-op0")
    operator.parallel_strategys.stage = stage
    for name, (devices, tensor_map, step, size) in layouts.items():
        layout = message.parallel_layout_item.add(param_name=name).parallel_layouts
        layout.dev_matrix.add(dim=devices)
        if any(isinstance(axis, list) for axis in tensor_map):
            for axis in tensor_map:
                layout.tensor_map.add(dim=axis if isinstance(axis, list) else [axis])
        else:
            layout.tensor_map.add(dim=tensor_map)
        layout.param_split_shape.add()
        layout.indices_offset.add()
        layout.field, layout.opt_weight_shard_step, layout.opt_weight_shard_size = 0, step, size
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(message.SerializeToString())


ROWS, COLUMNS, WHOLE = [0, -1], [-1, 0], [-1]
COLUMN_PARALLEL = ("wo", "w2")  # their inputs are cut


def slices(source: Path, target: Path) -> None:
    """Two pipeline stages of 2 x 2 devices: replicas, and tensors cut over two devices."""
    arrays = renamed(copied(source, target), OLD_NAMES)
    arrays = fused(arrays, groups_of(source), in_turn=True, mcore=False)
    stages: list[Arrays] = [{}, {}]
    for name, array in arrays.items():
        is_last = name.startswith(("model.layers.2.", "model.norm_out", "lm_head"))
        stages[is_last][name] = array
    for stage, own in enumerate(stages):
        layouts = {}
        ranks: list[Arrays] = [{} for _ in range(4)]
        for name, array in own.items():
            is_columns = name.split(".")[-2] in COLUMN_PARALLEL
            axis = int(is_columns) if array.ndim == 2 or not is_columns else None
            if name.endswith(("norm.weight", "norm_out.weight", "wo.bias")):
                axis = None
            parts = [array] * 2 if axis is None else np.split(array, 2, axis)
            kind = WHOLE if axis is None else (COLUMNS if axis else ROWS)[: array.ndim]
            layouts[name] = ([2, 2], kind, 0, 0)
            for rank in range(4):
                ranks[rank][name] = np.ascontiguousarray(parts[rank % 2])
        for rank, some in enumerate(ranks):
            number = 4 * stage + rank
            strategy = target / "strategy" / f"ckpt_strategy_rank_{number}.ckpt"
            write_strategy(strategy, stage, layouts)
            path = target / f"rank_{number}" / f"llama_rank_{number}-1_10.safetensors"
            notes = {"epoch_num": np.int32(1), "adam_m." + name: some[name]}
            save(path, {**some, **notes}, format="safetensors")


def settings_of(directory: Path) -> dict[str, Any]:
    """MindFormers' settings of the model in `directory`."""
    config = json.loads((directory / "config.json").read_text())
    model = {
        "type": "LlamaConfig",
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "rms_norm_eps": config["rms_norm_eps"],
        "seq_length": config["max_position_embeddings"],
        "qkv_has_bias": True,
        "attn_proj_has_bias": True,
        "compute_dtype": "float16",
        "eos_token_id": 2,
        "do_sample": True,
        "top_k": 3,
        "top_p": 0.9,
    }
    return {"model": {"model_config": model, "arch": {"type": "LlamaForCausalLM"}}}


def write_settings(target: Path, settings: Mapping[str, Any]) -> None:
    (target / "predict_llama.yaml").write_text(yaml.safe_dump(dict(settings)))


def predict_yaml(source: Path, target: Path) -> None:
    """Weights in a directory of their own, and sizes in MindFormers' settings."""
    arrays = renamed(copied(source, target), OLD_NAMES)
    (target / "config.json").unlink()
    save(target / "output" / "llama.ckpt", arrays)
    parallel = {"data_parallel": 1, "model_parallel": 4}
    paths = {"load_checkpoint": "output/llama.ckpt", "parallel_config": parallel}
    write_settings(target, {**settings_of(source), **paths})


def checkpoint_2(source: Path, target: Path) -> None:
    """The last of two iterations: MCore's names, each rank with a part of the matrices."""
    arrays = stacked_experts(renamed(copied(source, target), MCORE_NAMES))
    arrays = fused(arrays, groups_of(source), in_turn=True, mcore=True)
    directory = target / "iteration_00000010"
    described, storage = {}, {}
    ranks: list[Arrays] = [{}, {}]
    for name, array in arrays.items():
        axis = int(name.split(".")[-2] in ("linear_proj", "linear_fc2"))
        is_cut = array.ndim == 2
        parts = np.split(array, 2, axis) if is_cut else [array]
        described[name] = {
            "properties": {"dtype": "Float32", "replica_id": 0},
            "global_shape": list(array.shape),
            "axis_fragmentations": [2 if is_cut and i == axis else 1 for i in range(array.ndim)],
            "layout": None,
            "chunk": [
                {"global_offset": [i], "local_shape": list(part.shape)}
                for i, part in enumerate(parts)
            ],
        }
        for i, part in enumerate(parts):
            ranks[i][name] = np.ascontiguousarray(part)
            file = f"model-{i:07d}-0000002.safetensors"
            storage[str((name, (i,)))] = [{"file_name": file, "storage_rank": i, "rank_group": [i]}]
    for i, some in enumerate(ranks):
        save(directory / f"model-{i:07d}-0000002.safetensors", some, format="safetensors")
        optimizer = {f"adam_m.{name}": array for name, array in some.items()}
        save(directory / f"opt-{i:07d}-0000002.safetensors", optimizer, format="safetensors")
    metadata = {"state_dict_metadata": described, "storage_data": storage}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    (directory / "common.json").write_text(json.dumps({"global_step": 10, "ckpt_status": 0}))
    (target / "iteration_00000005").mkdir()
    (target / "latest_checkpointed_iteration.txt").write_text("10")


FORMS: dict[str, Callable[[Path, Path], None]] = {
    "MindFormers' names": old_names,
    "MindFormers' names, fused": old_fused,
    "MindFormers' names, fused, contiguous": old_fused_in_parts,
    "MCore's names": mcore,
    "MCore's names, fused": mcore_fused,
    "Slices of ranks, with strategies": slices,
    "`predict_*.yaml` instead of config.json": predict_yaml,
    "Checkpoint 2.0": checkpoint_2,
}
