"""A BERT encoder in ONNX's own text form, around weights named as transformers names them."""

import numpy as np
from onnx import ModelProto, numpy_helper, parser

MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
bert (int64[N,S] input_ids, int64[N,S] attention_mask) => (float[N,S,{width}] hidden_{layers}) {{
  length = Shape <start = 1, end = 2> (input_ids)
  positions = Slice (position_table, zero, length)
  words = Gather (word_table, input_ids)
  embedded = Add (words, positions)
  hidden_0 = LayerNormalization <epsilon = 1e-12> (embedded, norm_weight, norm_bias)
  mask = Cast <to = 1> (attention_mask)
  mask_less_1 = Sub (mask, one)
  mask_scaled = Mul (mask_less_1, large)
  mask_bias = Unsqueeze (mask_scaled, mask_axes)
  {body}
}}"""

HEADS = """
  {out}_m = MatMul (hidden_{i}, {name}_weight)
  {out}_b = Add ({out}_m, {name}_bias)
  {out}_h = Reshape ({out}_b, split)
  {out} = Transpose <perm = {perm}> ({out}_h)"""

LAYER = """
  scores_{i} = MatMul (q_{i}, k_{i})
  scaled_{i} = Mul (scores_{i}, scale)
  masked_{i} = Add (scaled_{i}, mask_bias)
  share_{i} = Softmax <axis = -1> (masked_{i})
  mixed_{i} = MatMul (share_{i}, v_{i})
  turned_{i} = Transpose <perm = [0, 2, 1, 3]> (mixed_{i})
  joined_{i} = Reshape (turned_{i}, join)
  am_{i} = MatMul (joined_{i}, {p}_attention_output_dense_weight)
  ab_{i} = Add (am_{i}, {p}_attention_output_dense_bias)
  ar_{i} = Add (ab_{i}, hidden_{i})
  a_{i} = LayerNormalization <epsilon = 1e-12> (
    ar_{i}, {p}_attention_output_LayerNorm_weight, {p}_attention_output_LayerNorm_bias)
  um_{i} = MatMul (a_{i}, {p}_intermediate_dense_weight)
  ub_{i} = Add (um_{i}, {p}_intermediate_dense_bias)
  u_{i} = Gelu (ub_{i})
  dm_{i} = MatMul (u_{i}, {p}_output_dense_weight)
  db_{i} = Add (dm_{i}, {p}_output_dense_bias)
  dr_{i} = Add (db_{i}, a_{i})
  hidden_{next} = LayerNormalization <epsilon = 1e-12> (
    dr_{i}, {p}_output_LayerNorm_weight, {p}_output_LayerNorm_bias)"""


def build(weights: dict[str, np.ndarray], layers: int, heads: int) -> ModelProto:
    """The model of `weights`: ids and mask (N, S) int64 to hidden states (N, S, width) float32."""
    width = weights["embeddings.word_embeddings.weight"].shape[1]
    body = "".join(layer_text(index) for index in range(layers))
    model = parser.parse_model(MODEL.format(width=width, layers=layers, body=body))
    tables = constants(weights, width, heads)
    for name, weight in weights.items():
        if name.startswith("encoder."):
            # A linear layer is stored (out, in); MatMul wants (in, out).
            tables[name.replace(".", "_")] = weight.T if weight.ndim == 2 else weight
    for name, value in tables.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    return model


def layer_text(i: int) -> str:
    p = f"encoder_layer_{i}"
    perms = {"query": "[0, 2, 1, 3]", "key": "[0, 2, 3, 1]", "value": "[0, 2, 1, 3]"}
    projections = (
        HEADS.format(out=f"{kind[0]}_{i}", i=i, name=f"{p}_attention_self_{kind}", perm=perm)
        for kind, perm in perms.items()
    )
    return "".join(projections) + LAYER.format(i=i, next=i + 1, p=p)


def constants(weights: dict[str, np.ndarray], width: int, heads: int) -> dict[str, np.ndarray]:
    first_type = weights["embeddings.token_type_embeddings.weight"][:1]  # one sentence: type 0
    return {
        "word_table": weights["embeddings.word_embeddings.weight"],
        "position_table": weights["embeddings.position_embeddings.weight"] + first_type,
        "norm_weight": weights["embeddings.LayerNorm.weight"],
        "norm_bias": weights["embeddings.LayerNorm.bias"],
        "zero": np.array([0], np.int64),
        "one": np.array(1, np.float32),
        "large": np.array(1e9, np.float32),
        "mask_axes": np.array([1, 2], np.int64),
        "split": np.array([0, 0, heads, width // heads], np.int64),
        "join": np.array([0, 0, width], np.int64),
        "scale": np.array((width // heads) ** -0.5, np.float32),
    }
