"""Prepare the stages of a method: what runs each in this worker, and its batch size."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

import msgspec

from mindspore_serving import log
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.value import Value, to_value
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed, StartError
from mindspore_serving.ipc.messages import ModelReport
from mindspore_serving.servable.builtins import BUILTINS
from mindspore_serving.servable.language import TRANSCRIPTION
from mindspore_serving.worker import signatures
from mindspore_serving.worker.chains import Chain, chain_at
from mindspore_serving.worker.functions import FunctionCaller
from mindspore_serving.worker.job import Job, JobQueue, Outcome, PreparedMethod, PreparedStage
from mindspore_serving.worker.loaded_servable import LoadedServable
from mindspore_serving.worker.remote import RemoteCaller

DYNAMIC_BATCH = 32  # max instances per run of a model whose batch dimension is dynamic
CALLS_AT_ONCE = 128  # instances that wait for another servable at a time
LOOP_BATCH = 16  # max consecutive calls of a function that takes a single instance


def prepare_method(
    servable: LoadedServable, method: Method, remote: RemoteCaller, *, owns_models: bool = True
) -> PreparedMethod:
    """Prepare a method; `remote` calls other servables, and models that this worker lacks."""
    label = f"servable {servable.declaration.name}, method {method.name}"
    caller = None if owns_models else remote
    stages = [
        _servable_stage(stage, remote, chain_at(method, position))
        if stage.kind is StageKind.SERVABLE
        else _prepare(servable, method, stage, caller)
        for position, stage in enumerate(method.stages)
    ]
    language = servable.language
    params = None if language is None else language.stage.params
    has_tokenizer = language is None or language.engine.card.has_tokenizer
    transcribes = (
        language is not None
        and language.engine.card.can_transcribe
        and not (language.engine.card.can_generate and _is_generation(method))
    )
    signature = signatures.of_method(
        method, servable.reports(), params, has_tokenizer=has_tokenizer, transcribes=transcribes
    )
    signature = msgspec.structs.replace(signature, has_state=method.has_sequences)
    method = replace(method, dtypes=signatures.dtypes_of(signature.inputs))
    return PreparedMethod(method, label, stages, signature)


def _is_generation(method: Method) -> bool:
    return all(stage.target != TRANSCRIPTION for stage in method.stages)


def _prepare(
    servable: LoadedServable, method: Method, stage: Stage, remote: RemoteCaller | None
) -> PreparedStage:
    if stage.kind is StageKind.MODEL:
        return _model_stage(servable, stage, remote)
    if stage.kind is StageKind.LANGUAGE:
        return _language_stage(servable, stage)
    if stage.kind is StageKind.TASK:
        return _task_stage(servable, stage)
    return _function_stage(servable, method, stage)


def _model_stage(
    servable: LoadedServable, stage: Stage, remote: RemoteCaller | None
) -> PreparedStage:
    key, subgraph = stage.target, stage.subgraph
    report = servable.models.get(key)
    if report is None:
        raise StartError(f"{stage.tag}: the model is not loaded by any worker that owns a device")
    _check_counts(stage, report)
    declared = servable.declaration.models.get(key)
    max_batch_size = declared.max_batch_size if declared is not None else 0
    limit = report.batch_size or max_batch_size or DYNAMIC_BATCH
    call = servable.run_model if remote is None else remote.call
    prepared = PreparedStage(stage.inputs, limit, lambda rows: call(key, subgraph, rows))
    threads = servable.threads
    if remote is not None:
        prepared.start = lambda _, jobs: remote.start(key, subgraph, jobs, stage)
    elif threads is not None:
        prepared.start = lambda queue, jobs: _run_in(threads, prepared, queue, jobs)
    return prepared


def _run_in(
    threads: ThreadPoolExecutor, stage: PreparedStage, queue: JobQueue, jobs: list[Job]
) -> None:
    """Run `jobs` on another thread and post their outcomes to the queue."""

    def run() -> None:
        try:
            outcomes = stage.run(jobs)
        except Exception as error:
            log.error("a model raised an exception", exc_info=True)
            outcomes = [StageFailed(str(error) or repr(error))] * len(jobs)
        queue.post(lambda: queue.resume(jobs, outcomes))

    threads.submit(copy_context().run, run)


def _servable_stage(stage: Stage, remote: RemoteCaller, chain: Chain | None) -> PreparedStage:
    servable, _, name = stage.target.rpartition(".")

    def call(rows: list[tuple[Value, ...]]) -> list[Outcome]:
        return remote.call_method(servable, stage.version, name, rows)

    def start(queue: JobQueue, jobs: list[Job]) -> None:
        remote.start_method(servable, name, jobs, stage, chain)

    return PreparedStage(stage.inputs, CALLS_AT_ONCE, call, start=start)


def _language_stage(servable: LoadedServable, stage: Stage) -> PreparedStage:
    def refuse(rows: list[tuple[Value, ...]]) -> list[Outcome]:
        text = "a method with a language model cannot be called from inside a stage"
        return [StageFailed(text)] * len(rows)

    assert servable.language is not None
    language, transcribes = servable.language, stage.target == TRANSCRIPTION
    start = (language.transcription if transcribes else language.stage).start
    return PreparedStage(stage.inputs, LOOP_BATCH, refuse, gains_from_batch=False, start=start)


def _task_stage(servable: LoadedServable, stage: Stage) -> PreparedStage:
    task, count = servable.tasks[stage.target], len(stage.outputs)

    def call(rows: list[tuple[Value, ...]]) -> list[Outcome]:
        return [
            outcome
            if isinstance(outcome, ServingError)
            else tuple(to_value(value) for value in outcome[:count])
            for outcome in task.run(rows)
        ]

    return PreparedStage(stage.inputs, task.batch_size, call)


def check_subgraph(key: str, subgraph: int, report: ModelReport | None) -> None:
    """Check that the model is loaded and has the subgraph.  Raises InvalidInputs."""
    if report is None:
        raise InvalidInputs(f"model '{key}' is not loaded")
    if subgraph >= len(report.graphs):
        raise InvalidInputs(
            f"model '{key}' has {len(report.graphs)} graph(s), counted from 0: there is no "
            f"subgraph {subgraph}"
        )


def _check_counts(stage: Stage, report: ModelReport) -> None:
    check_subgraph(stage.target, stage.subgraph, report)
    graph = report.graphs[stage.subgraph]
    num_required = sum(not spec.is_optional for spec in graph.inputs)
    for kind, count, required, expected in (
        ("inputs", len(stage.inputs), num_required, len(graph.inputs)),
        ("outputs", len(stage.outputs), len(graph.outputs), len(graph.outputs)),
    ):
        if (
            not required <= count <= expected and expected
        ):  # 0: the model does not know before its first run
            raise StartError(
                f"The {kind} count {count} in register_method not equal to the count {expected} "
                f"defined in model, model info: {stage.target}, subgraph: {stage.subgraph}"
            )


def _function_stage(servable: LoadedServable, method: Method, stage: Stage) -> PreparedStage:
    is_builtin = stage.kind is StageKind.BUILTIN
    function = (
        BUILTINS[stage.target][0] if is_builtin else servable.declaration.functions[stage.target]
    )
    caller = FunctionCaller(function, stage.target, len(stage.outputs))
    if stage.batch_size is None:
        prepared = PreparedStage(
            stage.inputs, LOOP_BATCH, caller.call_each, gains_from_batch=False, is_per_instance=True
        )
        if stage.streams:
            prepared.iterate = lambda job: caller.iterate(job.arguments(prepared))
        return prepared
    limit = stage.batch_size or _model_batch(servable, method, stage)
    return PreparedStage(stage.inputs, limit, caller.call_batch)


def _model_batch(servable: LoadedServable, method: Method, stage: Stage) -> int:
    """Return the batch size of a function stage that declares batch_size=0.

    The smallest batch size of the method's models if the function is called first, else the
    largest.
    """
    sizes = [
        servable.models[other.target].batch_size or DYNAMIC_BATCH
        for other in method.stages
        if other.kind is StageKind.MODEL and other.target in servable.models
    ]
    if not sizes:
        return 1
    is_first = all(slot < method.num_first for slot in stage.inputs)
    return min(sizes) if is_first else max(sizes)
