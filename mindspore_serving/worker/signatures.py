"""Signatures of one instance of a model or a method, as far as the loaded models define them.

An input of a method that is passed to a model has the dtype and shape of the model's input, and an
output that comes directly from a model those of its output.  The inputs and outputs of Python
stages are unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from mindspore_serving.batching import validate
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core import examples
from mindspore_serving.core import signature as signatures
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.examples import Example
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.ipc.messages import ModelReport
from mindspore_serving.servable.builtins import NUMBERS
from mindspore_serving.servable.language import PARAMETERS


def of_model(spec: DeclaredModel, signature: Signature) -> InstanceSignature:
    """Return the signature of one instance of a graph: `signature` without the batch dimension."""
    inputs = [
        _to_spec(tensor, validate.instance_shape(spec, i, tensor))
        for i, tensor in enumerate(signature.inputs)
    ]
    start = 1 if spec.with_batch_dim else 0
    outputs = [
        _to_spec(tensor, tensor.shape and tensor.shape[start:]) for tensor in signature.outputs
    ]
    is_batched = bool(spec.with_batch_dim)
    return InstanceSignature(tuple(inputs), tuple(outputs), is_batched, spec.no_batch_reason)


def of_method(
    method: Method,
    models: Mapping[str, ModelReport],
    params: SamplingParams | None = None,
    *,
    has_tokenizer: bool = True,
    transcribes: bool = False,
) -> InstanceSignature:
    """Return the signature of `method`; dtypes and shapes that `models` do not define are None.

    `params` are the defaults of a language model's sampling parameters; without a tokenizer its
    prompts are token ids.
    """
    known = _inputs(method, models) | _parameters(method, params)
    known |= _recordings(method) if transcribes else _prompts(method, has_tokenizer=has_tokenizer)
    for stage in method.stages:
        known.update(_outputs(stage, models))
    graphs = [_graph(stage, models) for stage in method.stages] or [InstanceSignature()]
    return InstanceSignature(
        tuple(_named(name, known.get(slot), method) for slot, name in enumerate(method.inputs)),
        tuple(
            _named(name, known.get(slot))
            for name, slot in zip(method.outputs, method.returns, strict=True)
        ),
        is_batched=any(graph.is_batched for graph in graphs),
        no_batch_reason="; ".join(filter(None, (graph.no_batch_reason for graph in graphs))),
    )


def dtypes_of(specs: Iterable[ValueSpec]) -> dict[str, "np.dtype[Any]"]:
    """Return the numpy dtypes of the arrays among `specs`, by name."""
    rows = {spec.name: dtypes.BY_NAME[spec.dtype] for spec in specs if spec.dtype is not None}
    return {name: row.numpy for name, row in rows.items() if row.numpy is not None}


def _to_spec(tensor: TensorSpec, shape: tuple[int, ...] | None) -> ValueSpec:
    row = None if tensor.dtype is None else dtypes.BY_SPEC.get(tensor.dtype)
    sizes = None if shape is None else tuple(None if size < 0 else size for size in shape)
    example = None if tensor.example is None else Example(tensor.example)
    name = None if row is None else row.name
    if example is None and tensor.trial and sizes:  # other sizes may be refused
        example = examples.likely(tensor.name, name, tensor.trial[-len(sizes) :])
    return ValueSpec(
        tensor.name,
        name,
        sizes,
        declared=example,
        columns=tensor.columns,
        labels=tensor.labels,
        is_optional=tensor.is_optional,
    )


def _named(name: str, spec: ValueSpec | None, method: Method | None = None) -> ValueSpec:
    known = ValueSpec(name) if spec is None else spec
    if method is None:
        return replace(known, name=name)
    example = method.examples.get(name, known.declared)
    return replace(known, name=name, is_optional=name in method.defaults, declared=example)


def _inputs(method: Method, models: Mapping[str, ModelReport]) -> dict[int, ValueSpec]:
    """Return the specs of input slots that models take; those of several models are merged."""
    specs: dict[int, list[ValueSpec]] = {}
    for stage in method.stages:
        for slot, spec in zip(stage.inputs, _graph(stage, models).inputs, strict=False):
            if slot < len(method.inputs):
                specs.setdefault(slot, []).append(spec)
    return {slot: signatures.merge(merged) for slot, merged in specs.items()}


def _parameters(method: Method, params: SamplingParams | None) -> dict[int, ValueSpec]:
    """Return the specs of input slots that are sampling parameters."""
    specs = {}
    for stage in method.stages:
        if stage.kind is not StageKind.BUILTIN or stage.target != PARAMETERS or params is None:
            continue
        for name, slot in zip(NUMBERS, stage.inputs, strict=False):
            if slot < len(method.inputs):
                specs[slot] = ValueSpec("", parameter=name, default=getattr(params, name))
    return specs


def _prompts(method: Method, *, has_tokenizer: bool) -> dict[int, ValueSpec]:
    """Return the specs of input slots that are prompts of a language model."""
    example = examples.likely("prompt", "str", ()) if has_tokenizer else Example(examples.IDS)
    return {
        stage.inputs[0]: ValueSpec("", declared=example)
        for stage in method.stages
        if stage.kind is StageKind.LANGUAGE and stage.inputs[0] < len(method.inputs)
    }


def _recordings(method: Method) -> dict[int, ValueSpec]:
    """Return the specs of input slots that are recordings for a model of speech."""
    return {
        stage.inputs[0]: ValueSpec("", "bytes", (), declared=Example({"b64": examples.WAV}))
        for stage in method.stages
        if stage.kind is StageKind.LANGUAGE and stage.inputs[0] < len(method.inputs)
    }


def _outputs(stage: Stage, models: Mapping[str, ModelReport]) -> Iterator[tuple[int, ValueSpec]]:
    specs: Sequence[ValueSpec] = _graph(stage, models).outputs
    if stage.kind is StageKind.LANGUAGE:
        specs = [ValueSpec("", "str", ())] * len(stage.outputs)
    return zip(stage.outputs, specs, strict=False)


def _graph(stage: Stage, models: Mapping[str, ModelReport]) -> InstanceSignature:
    has_report = stage.kind in (StageKind.MODEL, StageKind.TASK)
    report = models.get(stage.target) if has_report else None
    return report.graphs[stage.subgraph] if report is not None else InstanceSignature()
