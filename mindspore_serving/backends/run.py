"""Running of a model on instances: check, group, cut into batches, run, split.

A failure stays with the instances it belongs to.  Knows no format.
"""

from collections.abc import Sequence
from typing import TypeAlias

from mindspore_serving.backends.base import LoadedModel
from mindspore_serving.batching.assemble import (
    Results,
    assemble,
    graph_batch_size,
    group,
    max_rows,
    split,
)
from mindspore_serving.batching.validate import Row, check_instance
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed, WorkerUnavailable

Outcome: TypeAlias = "Results | ServingError"


def run_model(
    backend: LoadedModel, spec: DeclaredModel, subgraph: int, instances: Sequence[Sequence[Value]]
) -> list[Outcome]:
    """Return one outcome per instance, in order: its outputs, or the error.

    An instance that does not fit the model gets InvalidInputs and is in no batch.  A run that fails
    gives StageFailed to the instances in it only.  The arrays belong to the caller; those of one
    run may share memory with each other, row by row.
    """
    signature = backend.signature[subgraph]
    outcomes: list[Outcome | None] = [None] * len(instances)
    positions: list[int] = []
    rows: list[Row] = []
    for i, instance in enumerate(instances):
        try:
            rows.append(check_instance(spec, signature, instance))
            positions.append(i)
        except InvalidInputs as error:
            outcomes[i] = error
    size = graph_batch_size(spec, signature)
    for members in group(spec, rows) if rows else []:
        step = size or max_rows(spec, signature) or len(members)
        for start in range(0, len(members), step):
            chunk = members[start : start + step]
            done = _run_chunk(backend, spec, subgraph, [rows[i] for i in chunk], size)
            for i, outcome in zip(chunk, done, strict=True):
                outcomes[positions[i]] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def _run_chunk(
    backend: LoadedModel, spec: DeclaredModel, subgraph: int, rows: list[Row], size: int
) -> Sequence[Outcome]:
    try:
        outputs = backend.run(assemble(spec, rows, size), subgraph)
        return split(spec, outputs, len(rows), size or len(rows))
    except ServingError as error:
        kind = WorkerUnavailable if isinstance(error, WorkerUnavailable) else StageFailed
        return [kind(f"Predict Failed, model: '{spec.key}', error msg: {error}")] * len(rows)
