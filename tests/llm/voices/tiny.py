"""Tiny voices in the forms of Piper and Kokoro, whose sounds can be computed by hand."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

SYMBOLS = ["_", "^", "$", " ", ".", *string.ascii_lowercase]
PIPER = {
    "audio": {"sample_rate": 22_050},
    "phoneme_type": "text",
    "phoneme_id_map": {symbol: [number] for number, symbol in enumerate(SYMBOLS)},
    "num_symbols": len(SYMBOLS),
    "num_speakers": 1,
    "inference": {"noise_scale": 0.0, "length_scale": 1.0, "noise_w": 0.0},
}
WIDTH = 4  # of styles
SAMPLES = 64  # of each phoneme


def write_piper(directory: Path, name: str = "tiny", **changes: Any) -> Path:
    """Write a voice whose samples are the ids, SAMPLES times over; with speakers, and theirs."""
    settings = {**PIPER, **changes}
    speakers = settings["num_speakers"] > 1
    integers, floats = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input", integers, [1, "phonemes"]),
        helper.make_tensor_value_info("input_lengths", integers, [1]),
        helper.make_tensor_value_info("scales", floats, [3]),
    ]
    last = "cast"
    nodes = [helper.make_node("Cast", ["input"], ["cast"], to=floats)]
    if speakers:
        inputs.append(helper.make_tensor_value_info("sid", integers, [1]))
        nodes += [
            helper.make_node("Cast", ["sid"], ["speaker"], to=floats),
            helper.make_node("Mul", ["cast", "speaker"], ["spoken"]),
        ]
        last = "spoken"
    nodes.append(helper.make_node("Tile", [last, "times"], ["output"]))
    return _write(directory / f"{name}.onnx", nodes, inputs, [1, "samples"], settings)


def _write(
    path: Path, nodes: list[Any], inputs: list[Any], shape: list[Any], settings: Any
) -> Path:
    times = helper.make_tensor("times", TensorProto.INT64, [2], [1, SAMPLES])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "voice", inputs, [output], [times])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)
    Path(f"{path}.json").write_text(json.dumps(settings))
    return path


def write_kokoro(directory: Path, *, name: str = "tokens", speed: int = TensorProto.FLOAT) -> Path:
    """Write a directory whose samples are a style's first value, times speed, for each id."""
    floats = TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, "phonemes"]),
        helper.make_tensor_value_info("style", floats, [1, WIDTH]),
        helper.make_tensor_value_info("speed", speed, [1]),
    ]
    nodes = [
        helper.make_node("Cast", ["speed"], ["rate"], to=floats),
        helper.make_node("ReduceMean", ["style"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["mean", "rate"], ["level"]),
        helper.make_node("Cast", [name], ["cast"], to=floats),
        helper.make_node("Mul", ["cast", "level"], ["loud"]),
        helper.make_node("Tile", ["loud", "times"], ["output"]),
    ]
    model = _write(directory / "model.onnx", nodes, inputs, [1, "samples"], {})
    Path(f"{model}.json").unlink()
    letters = {letter: number for number, letter in enumerate(string.ascii_letters + " .ˈəʤ", 1)}
    (directory / "config.json").write_text(json.dumps({"vocab": letters}))
    rows = np.arange(510, dtype=np.float32)[:, None, None] / 100_000
    styles = {
        "af_one": rows.repeat(WIDTH, 2), "bm_two": 2 * rows.repeat(WIDTH, 2),
        "jf_three": rows.repeat(WIDTH, 2),
    }  # fmt: skip
    with (directory / "voices-v1.0.bin").open("wb") as file:
        np.savez(file, **styles)
    return directory
