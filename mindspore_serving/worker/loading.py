"""Loads a servable into this process: declaration, models, language model, a program per method.

Knows nothing of channels: a worker that owns no models has them run by its `RemoteCaller`.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

from mindspore_serving import backends, loading, log
from mindspore_serving.backends.base import Array, LoadedModel, ModelSource
from mindspore_serving.backends.probing import check_batch
from mindspore_serving.batching import assemble
from mindspore_serving.core.declaration import (
    Declaration,
    DeclaredModel,
    DistributedSpec,
    LanguageSpec,
)
from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.value import Value
from mindspore_serving.errors import NotFound, ServingError, StartError
from mindspore_serving.ipc.messages import ModelReport, Setup
from mindspore_serving.ipc.status import Lane
from mindspore_serving.servable import model as model_api
from mindspore_serving.servable import pipeline, repository
from mindspore_serving.servable.language import add_generate
from mindspore_serving.worker import nested, signatures
from mindspore_serving.worker.host import Host, call_name
from mindspore_serving.worker.job import Outcome
from mindspore_serving.worker.language_models import open_language, open_task_model
from mindspore_serving.worker.preparing import check_subgraph, make_program
from mindspore_serving.worker.remote import RemoteCaller


def load(
    setup: Setup,
    remote: RemoteCaller,
    make_wake: Callable[[], Callable[[], None]],
    steps: Lane | None = None,
    on_broken: Callable[[str], None] = log.error,
) -> Host:
    """Everything a worker needs to serve.  `make_wake` gives a function by which threads wake the
    worker's; steps of a language model are written to `steps`; `on_broken` gets, on any thread, why
    a distributed servable cannot go on.  Raises StartError (or another ServingError).
    """
    if setup.device_id is not None:
        os.environ["SERVING_DEVICE_ID"] = str(setup.device_id)
    declaration, version = _declare(setup)
    host = Host(declaration, version, setup.device_type)
    host.models = dict(setup.models)
    if setup.owns_models:
        _load_models(host, setup)
    if declaration.distributed is not None and setup.gang is not None:
        _open_gang(host, declaration.distributed, setup.gang, on_broken)
    if setup.owns_models:
        if declaration.language is not None:
            host.language = open_language(declaration.language, setup, make_wake(), steps)
        for task in declaration.tasks.values():
            open_task_model(host, task, setup)
    _add_predict(host)
    _add_programs(host, setup, remote)
    model_api.bind_runner(_runner(host, setup, remote))
    pipeline.bind_pipeline(_pipeline_runner(host, remote))
    return host


def _declare(setup: Setup) -> tuple[Declaration, int]:
    """What the servable declares, with what runs each model, and its version."""
    declaration, version = repository.make_declaration(
        setup.servable_directory,
        setup.servable_name,
        setup.version,
        setup.llm_options,
        allow_pickle=setup.allow_pickle,
        backend=setup.backend,
        with_batch_dim=setup.with_batch_dim,
    )
    if declaration.language is not None and not declaration.methods:
        _add_default_method(declaration, declaration.language)
    _check_start(declaration, setup)
    for key, spec in declaration.models.items():
        declaration.models[key] = replace(spec, format=_row(spec, setup.enable_lite))
    return declaration, version


def _load_models(host: Host, setup: Setup) -> None:
    """Those of model files, on the device that all of them can use."""
    models = host.declaration.models
    formats = sorted({spec.format for spec in models.values()})
    host.device_type = backends.choose_device(setup.device_type, formats, setup.servable_name)
    _check_device(setup, host)
    for number, spec in enumerate(models.values()):
        loading.reached(number / len(models))
        _load_model(host, spec, setup)


def _add_default_method(declaration: Declaration, spec: LanguageSpec) -> None:
    if spec.engine == UPSTREAM:  # which needs no library of language models
        add_generate(declaration)
        return
    from mindspore_serving.worker.bare import add_default_method  # and what it knows

    add_default_method(declaration, spec)


def _check_start(declaration: Declaration, setup: Setup) -> None:
    """That the servable is started by the function for its kind."""
    name = setup.servable_name
    if declaration.distributed is not None and setup.gang is None:
        raise StartError(
            f"servable '{name}' is declared as distributed servable: start it with "
            "distributed.start_servable"
        )
    if declaration.distributed is None and setup.gang is not None:
        raise StartError(
            f"servable '{name}' has no distributed.declare_servable in its servable_config.py: "
            "start it with server.start_servables"
        )


def _open_gang(
    host: Host, spec: DistributedSpec, options: GangOptions, on_broken: Callable[[str], None]
) -> None:
    """Wait for the agents; they are the servable's model."""
    from mindspore_serving.distributed.backend import GangModel

    name = host.declaration.name
    gang = GangModel.open(name, spec, options, on_broken)
    host.declaration.models[name] = gang.spec
    host.agents = gang.agents
    host.num_slots = gang.num_slots
    if gang.num_slots > 1:
        host.threads = ThreadPoolExecutor(gang.num_slots, "prediction")
    _add_model(host, gang.spec, gang)


def _row(spec: DeclaredModel, enable_lite: bool) -> str:
    """What runs the model: a name of `backends.formats`."""
    if enable_lite and spec.format == "mindir" and not spec.backend:
        return "mindir_lite"
    return backends.resolve(spec.format, spec.backend)


def _check_device(setup: Setup, host: Host) -> None:
    if host.declaration.models and setup.device_id is None and host.device_type != "cpu":
        raise StartError(
            f"Servable '{setup.servable_name}' has models declared by declare_model, but parameter "
            "'device_ids' of ServableStartConfig is not set in Serving startup script when the "
            "device target is not CPU"
        )


def _load_model(host: Host, spec: DeclaredModel, setup: Setup) -> None:
    directory, name = setup.servable_directory, setup.servable_name
    source = ModelSource(
        spec=spec,
        paths=repository.model_paths(directory, name, host.version, spec),
        device_type=host.device_type,
        device_id=setup.device_id or 0,
        dec_key=setup.dec_key,
        dec_mode=setup.dec_mode,
        config_file=repository.config_path(directory, name, spec),
        options=spec.options,
    )
    _add_model(host, spec, backends.open_backend(source))


def _add_model(host: Host, spec: DeclaredModel, backend: LoadedModel) -> None:
    host.backends[spec.key] = backend
    graphs = [signatures.of_model(spec, signature) for signature in backend.signature]
    host.models[spec.key] = ModelReport(assemble.batch_size(spec, backend.signature), graphs)


def _add_predict(host: Host) -> None:
    """A bare directory of models gets its method from the model's own signature."""
    declaration = host.declaration
    if declaration.methods or not host.backends:
        return
    (key,) = host.backends
    check_batch(host.backends[key], declaration.models[key])
    if not host.backends[key].signature[0].outputs:
        raise StartError(
            f"servable '{declaration.name}': the model does not say what it returns; declare it "
            "and a method in servable_config.py"
        )
    declaration.methods["predict"] = repository.predict_method(key, host.backends[key].signature[0])


def _add_programs(host: Host, setup: Setup, remote: RemoteCaller) -> None:
    for name, method in host.declaration.methods.items():
        if not setup.owns_models and method.has_only_models:
            continue  # a worker that owns the model does it with one hop less
        if host.language is None and any(s.kind is StageKind.LANGUAGE for s in method.stages):
            continue
        if any(s.kind is StageKind.TASK and s.target not in host.tasks for s in method.stages):
            continue  # as those of a language model, it is done where that is loaded
        host.programs[name] = make_program(host, method, remote if not setup.owns_models else None)
    if setup.owns_models and setup.device_id is not None:
        for key, report in host.models.items():
            for subgraph, graph in enumerate(report.graphs):
                num_outputs = len(graph.outputs) or _declared_outputs(host, key, subgraph)
                method = _call_method(key, subgraph, len(graph.inputs), num_outputs)
                host.programs[method.name] = make_program(host, method, None)


def _declared_outputs(host: Host, key: str, subgraph: int) -> int:
    """How many outputs a stage expects of a model that does not say so itself."""
    for method in host.declaration.methods.values():
        for stage in method.stages:
            if (stage.kind, stage.target, stage.subgraph) == (StageKind.MODEL, key, subgraph):
                return len(stage.outputs)
    return 1


def _call_method(key: str, subgraph: int, num_inputs: int, num_outputs: int) -> Method:
    slots = tuple(range(num_inputs, num_inputs + num_outputs))
    stage = Stage(
        StageKind.MODEL, key, tuple(range(num_inputs)), slots, f"Model '{key}'", subgraph=subgraph
    )
    inputs = tuple(f"x{i}" for i in range(num_inputs))
    outputs = tuple(f"y{i}" for i in range(num_outputs))
    return Method(call_name(key, subgraph), inputs, outputs, (stage,), slots)


def _runner(host: Host, setup: Setup, remote: RemoteCaller) -> model_api.Runner:
    """What `Model.call` does in this worker."""
    call = host.run_model if setup.owns_models else remote.call

    def run(key: str, subgraph: int, rows: list[tuple[Value, ...]]) -> list[tuple[Array, ...]]:
        check_subgraph(key, subgraph, host.models.get(key))
        results = _without_errors(call(key, subgraph, rows))
        return cast(list[tuple[Array, ...]], results)  # models make nothing else

    return run


def _pipeline_runner(host: Host, remote: RemoteCaller) -> pipeline.Runner:
    """What `PipelineServable.run` does in this worker."""

    def run(
        servable: str, method: str, version: int, rows: list[tuple[Value, ...]]
    ) -> list[tuple[Value, ...]]:
        if servable == host.declaration.name and version in (0, host.version):
            if method not in host.programs:
                raise NotFound(f"servable {servable} has no method {method} here")
            return nested.run_method(host.programs[method], rows)
        return _without_errors(remote.call_method(servable, version, method, rows))

    return run


def _without_errors(outcomes: list[Outcome]) -> list[tuple[Value, ...]]:
    """Raises the first error of `outcomes`."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, ServingError):
            raise outcome
        results.append(outcome)
    return results
