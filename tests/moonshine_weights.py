"""Moonshine tiny (English) from the packages that carry it, in the form of Hugging Face.

The matrices are those of the files for ONNX Runtime, whose 8-bit integers are widened.
"""

import importlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.published import file_of

CONFIG = {
    "architectures": ["MoonshineForConditionalGeneration"],
    "model_type": "moonshine",
    "vocab_size": 32_768,
    "hidden_size": 288,
    "intermediate_size": 1152,
    "encoder_num_hidden_layers": 6,
    "decoder_num_hidden_layers": 6,
    "encoder_num_attention_heads": 8,
    "decoder_num_attention_heads": 8,
    "max_position_embeddings": 194,
    "partial_rotary_factor": 0.9,
    "rope_theta": 10_000.0,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
}
_FBS = "onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs"
_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8}
_MODULE = re.compile(r"/(?:model/decoder/)?(layers\.\d+/.+?)/MatMul_quant")
_NORMS = {"onnx::Mul_2080": "weight", "onnx::Add_2081": "bias"}


def make_moonshine_tiny(directory: Path) -> None:
    """Write the model; skip the test without the packages."""
    encoder = file_of("moonshine_voice", "assets/tiny-en/encoder_model.ort")
    tensors = {f"model.encoder.{name}": value for name, value in _read(encoder)}
    decoder = encoder.with_name("decoder_model_merged.ort")
    tensors |= {f"model.decoder.{name}": value for name, value in _read(decoder)}
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    shutil.copy(file_of("moonshine_onnx", "assets/tokenizer.json"), directory)


def _read(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Iterate over the tensors of a file, by their names in the encoder or the decoder."""
    session = importlib.import_module(f"{_FBS}.InferenceSession").InferenceSession
    graph = session.GetRootAsInferenceSession(path.read_bytes(), 0).Model().Graph()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for number in range(graph.InitializersLength()):
        tensor = graph.Initializers(number)
        kind = _TYPES.get(tensor.DataType())
        if kind is not None and tensor.RawDataLength():
            shape = [tensor.Dims(axis) for axis in range(tensor.DimsLength())]
            content = tensor.RawDataAsNumpy().view(kind).reshape(shape)
            arrays[tensor.Name().decode()] = content
    for name, array in arrays.items():
        plain = name.removeprefix("model.decoder.").partition("_merged_")[0]
        plain = plain.removesuffix("_add_tensor")
        if name in _NORMS:
            yield f"groupnorm.{_NORMS[name]}", array.reshape(-1)
        elif array.dtype == np.float32 and plain.endswith((".weight", ".bias")):
            yield plain, array
    table = "model.decoder.embed_tokens.weight_merged_0"
    if f"{table}_quantized" in arrays:
        yield "embed_tokens.weight", _widened(arrays, table)
    modules = {module: name for node in _nodes(graph) for module, name in _product(node)}
    for module, name in modules.items():
        yield f"{module}.weight", np.ascontiguousarray(_widened(arrays, name).T)


def _nodes(graph: Any) -> Iterator[Any]:
    """Iterate over the nodes of a graph and of those inside it."""
    for number in range(graph.NodesLength()):
        node = graph.Nodes(number)
        yield node
        for index in range(node.AttributesLength()):
            inner = node.Attributes(index).G()
            if inner is not None:
                yield from _nodes(inner)


def _product(node: Any) -> Iterator[tuple[str, str]]:
    """Iterate over the module of a product, if the node is one, with the name of its matrix."""
    match = _MODULE.match(node.Name().decode())
    names = [node.Inputs(number).decode() for number in range(node.InputsLength())]
    matrix = next((name for name in names if re.match(r"onnx::MatMul_\d+.*_quantized", name)), "")
    if match and matrix:
        yield match[1].replace("/", "."), matrix.removesuffix("_quantized")


def _widened(arrays: dict[str, np.ndarray[Any, Any]], name: str) -> np.ndarray[Any, Any]:
    scale, zero = (arrays[f"{name}_{part}"].astype(np.float32) for part in ("scale", "zero_point"))
    return (arrays[f"{name}_quantized"].astype(np.float32) - zero) * scale
