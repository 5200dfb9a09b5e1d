"""Load a servable into this process: declaration, models, language model and prepared methods.

It knows no channel: in a worker without models, `RemoteCaller` has them run elsewhere.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import msgspec

from mindspore_serving import backends, loading, log
from mindspore_serving.backends import batch_axis, described
from mindspore_serving.backends.base import Array, LoadedModel, ModelSource
from mindspore_serving.backends.formats import FORMATS
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
from mindspore_serving.servable import repository, servable_method
from mindspore_serving.servable.archive import unpacked
from mindspore_serving.servable.language import add_generate
from mindspore_serving.worker import model_states, nested, signatures
from mindspore_serving.worker.job import Outcome
from mindspore_serving.worker.language_models import open_language, open_task_model
from mindspore_serving.worker.loaded_servable import LoadedServable, call_name
from mindspore_serving.worker.preparing import check_subgraph, prepare_method
from mindspore_serving.worker.remote import RemoteCaller
from mindspore_serving.worker.warm_up import warm_up

_RUN_OPTIONS = {"thread_num": "model_threads", "precision_mode": "precision"}
_PRECISIONS = ("float32", "bfloat16", "float16")  # of the operator


def load(
    setup: Setup,
    remote: RemoteCaller,
    make_wake: Callable[[], Callable[[], None]],
    steps: Lane | None = None,
    on_broken: Callable[[str], None] = log.error,
) -> LoadedServable:
    """Load what this worker needs to serve.  Raises StartError (or another ServingError).

    `make_wake` creates a function by which other threads wake the worker's.  Steps of a language
    model are written to `steps`.  `on_broken` gets, on any thread, the reason why a distributed
    servable cannot continue.
    """
    if setup.device_id is not None:
        os.environ["SERVING_DEVICE_ID"] = str(setup.device_id)
    declaration, version = _declare(setup)
    servable = LoadedServable(declaration, version, setup.device_type)
    servable.models, servable.role = dict(setup.models), setup.role
    if setup.owns_models:
        _load_models(servable, setup)
    if declaration.distributed is not None and setup.gang is not None:
        stop_requested = remote.inbox.exit_requested
        _open_gang(servable, declaration.distributed, setup.gang, on_broken, stop_requested)
    if setup.owns_models:
        if declaration.language is not None:
            servable.language = open_language(declaration.language, setup, make_wake(), steps)
        for task in declaration.tasks.values():
            open_task_model(servable, task, setup)
    _add_predict(servable)
    _add_programs(servable, setup, remote)
    model_api.bind_runner(_runner(servable, setup, remote))
    servable_method.bind_runner(_method_runner(servable, remote))
    if setup.owns_models:  # else the models are in workers that are not asked yet
        warm_up(servable, os.path.join(setup.servable_directory, setup.servable_name))
    return servable


def _declare(setup: Setup) -> tuple[Declaration, int]:
    """Return the declaration of the servable, with a backend for each model, and its version."""
    declaration, version = repository.make_declaration(
        setup.servable_directory,
        setup.servable_name,
        setup.version,
        setup.llm_options,
        allow_pickle=setup.allow_pickle,
        backend=setup.backend,
        with_batch_dim=setup.with_batch_dim,
        batch_axis=setup.batch_axis,
        states=setup.states,
        network=setup.network,
    )
    if declaration.language is not None and not declaration.methods:
        _add_default_method(declaration, declaration.language)
    _check_start(declaration, setup)
    for key, spec in declaration.models.items():
        declaration.models[key] = replace(spec, format=_format_of(spec, setup.enable_lite))
    return declaration, version


def _load_models(servable: LoadedServable, setup: Setup) -> None:
    """Load the model files, on a device that all of their backends support."""
    models = servable.declaration.models
    formats = sorted({spec.format for spec in models.values()})
    servable.device_type = backends.choose_device(setup.device_type, formats, setup.servable_name)
    if models:  # without any, ids only number the workers
        backends.check_device_id(servable.device_type, setup.device_id, setup.servable_name)
    _check_device(setup, servable)
    for number, spec in enumerate([*models.values()]):
        loading.reached(number / len(models))
        _load_model(servable, spec, setup)


def _add_default_method(declaration: Declaration, spec: LanguageSpec) -> None:
    if spec.engine == UPSTREAM:  # which needs no library of language models
        add_generate(declaration)
        return
    from mindspore_serving.worker.default_method import add_default_method  # imports `llm`

    add_default_method(declaration, spec)


def _check_start(declaration: Declaration, setup: Setup) -> None:
    """Check that the servable was started by the function for its kind."""
    name = setup.servable_name
    if declaration.distributed is not None and setup.gang is None:
        raise StartError(
            f"servable '{name}' is declared as distributed servable: start it with "
            "distributed.start_servable"
        )
    if setup.role and declaration.language is None:
        raise StartError(f"roles is set, but servable '{name}' is no language model: leave it out")
    if setup.run_options and not declaration.models:
        names = " and ".join(_RUN_OPTIONS[name] for name in setup.run_options)
        raise StartError(
            f"{names}: servable '{name}' has no model file, so this does not apply; options of a "
            "language model are dtype and num_threads"
        )
    if declaration.distributed is None and setup.gang is not None:
        raise StartError(
            f"servable '{name}' has no distributed.declare_servable in its servable_config.py: "
            "start it with server.start_servables"
        )


def _open_gang(
    servable: LoadedServable,
    spec: DistributedSpec,
    options: GangOptions,
    on_broken: Callable[[str], None],
    stop_requested: Callable[[], Awaitable[None]],
) -> None:
    """Wait for the agents, which together are the servable's model."""
    from mindspore_serving.distributed.backend import GangModel

    name = servable.declaration.name
    gang = GangModel.open(name, spec, options, on_broken, stop_requested)
    servable.declaration.models[name] = gang.spec
    servable.agents = gang.agents
    servable.num_slots = gang.num_slots
    if gang.num_slots > 1:
        servable.threads = ThreadPoolExecutor(gang.num_slots, "prediction")
    _add_model(servable, gang.spec, gang)


def _format_of(spec: DeclaredModel, enable_lite: bool) -> str:
    """Return the name in `backends.formats` of the backend that runs the model."""
    if enable_lite and spec.format == "mindir" and not spec.backend:
        return "mindir_lite"
    return backends.resolve(spec.format, spec.backend)


def _check_device(setup: Setup, servable: LoadedServable) -> None:
    if servable.declaration.models and setup.device_id is None and servable.device_type != "cpu":
        raise StartError(
            f"Servable '{setup.servable_name}' has models declared by declare_model, but parameter "
            "'device_ids' of ServableStartConfig is not set in Serving startup script when the "
            "device target is not CPU"
        )


def _load_model(servable: LoadedServable, spec: DeclaredModel, setup: Setup) -> None:
    directory, name = setup.servable_directory, setup.servable_name
    paths = repository.model_paths(directory, name, servable.version, spec)
    if spec.member:
        with unpacked(paths[0], spec.member) as path:
            _open_model(servable, spec, setup, (path,))
    else:
        _open_model(servable, spec, setup, paths)


def _open_model(
    servable: LoadedServable, spec: DeclaredModel, setup: Setup, paths: tuple[str, ...]
) -> None:
    directory, name = setup.servable_directory, setup.servable_name
    source = ModelSource(
        spec=spec,
        paths=paths,
        device_type=servable.device_type,
        device_id=setup.device_id or 0,
        dec_key=setup.dec_key,
        dec_mode=setup.dec_mode,
        config_file=repository.config_path(directory, name, spec),
        options=_options(spec, setup.run_options),
    )
    _check_precision(source)
    opened = backends.open_backend(source)
    states, is_inside = model_states.reports_of(spec, opened)
    model = described.check(spec, opened)
    spec = assemble.without_arguments(spec, model.signature[0])
    is_bare = not servable.declaration.methods
    spec, model = batch_axis.settle(spec, model, can_probe=is_bare)
    servable.declaration.models[spec.key] = spec
    _add_model(servable, spec, model)
    servable.models[spec.key] = msgspec.structs.replace(
        servable.models[spec.key], states=states, is_inside=is_inside, controls=spec.controls
    )


def _options(spec: DeclaredModel, run_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a declaration with those of the operator in their place."""
    options = {**spec.options, **run_options}
    if devices := options.get("device_list"):
        options["device_list"] = tuple({**device, **run_options} for device in devices)
    return options


def _check_precision(source: ModelSource) -> None:
    """Raise StartError if the operator sets a precision and OpenVINO does not run the model."""
    spec, precision = source.spec, source.options.get("precision_mode")
    row = FORMATS.get(spec.format)
    if precision in _PRECISIONS and (row is None or row.library != "openvino"):
        raise StartError(
            f"precision is '{precision}' for model '{spec.key}', which OpenVINO does not run: "
            "leave it out, or set backend to openvino, if the model is MindIR or ONNX"
        )


def _add_model(servable: LoadedServable, spec: DeclaredModel, backend: LoadedModel) -> None:
    servable.backends[spec.key] = backend
    graphs = [signatures.of_model(spec, signature) for signature in backend.signature]
    servable.models[spec.key] = ModelReport(assemble.batch_size(spec, backend.signature), graphs)


def _add_predict(servable: LoadedServable) -> None:
    """Add the method of a directory of models without configuration, by the model's signature."""
    declaration = servable.declaration
    if declaration.methods or not servable.backends:
        return
    (key,) = servable.backends
    check_batch(servable.backends[key], declaration.models[key])
    if not servable.backends[key].signature[0].outputs:
        raise StartError(
            f"servable '{declaration.name}': the model does not say what it returns; declare it "
            "and a method in servable_config.py"
        )
    declaration.methods["predict"] = repository.predict_method(
        key,
        model_states.without_states(servable.backends[key].signature[0], servable.models[key]),
        [tensor.name for tensor in declaration.models[key].outputs],
    )


def _add_programs(servable: LoadedServable, setup: Setup, remote: RemoteCaller) -> None:
    for name, method in servable.declaration.methods.items():
        if not setup.owns_models and method.has_only_models:
            continue  # a worker that owns the model runs it with one hop less
        if servable.language is None and any(s.kind is StageKind.LANGUAGE for s in method.stages):
            continue
        if any(s.kind is StageKind.TASK and s.target not in servable.tasks for s in method.stages):
            continue  # runs where the model is loaded, like those of a language model
        method = model_states.with_model_states(method, servable.models)
        servable.programs[name] = prepare_method(
            servable, method, remote, owns_models=setup.owns_models
        )
    if setup.owns_models and setup.device_id is not None:
        for key, report in servable.models.items():
            for subgraph, graph in enumerate(report.graphs):
                num_outputs = len(graph.outputs) or _declared_outputs(servable, key, subgraph)
                method = _call_method(key, subgraph, len(graph.inputs), num_outputs)
                servable.programs[method.name] = prepare_method(servable, method, remote)


def _declared_outputs(servable: LoadedServable, key: str, subgraph: int) -> int:
    """Return the number of outputs that a stage declares for a model of unknown signature."""
    for method in servable.declaration.methods.values():
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


def _runner(servable: LoadedServable, setup: Setup, remote: RemoteCaller) -> model_api.Runner:
    """Return the function that runs `Model.call` in this worker."""
    call = servable.run_model if setup.owns_models else remote.call

    def run(key: str, subgraph: int, rows: list[tuple[Value, ...]]) -> list[tuple[Array, ...]]:
        check_subgraph(key, subgraph, servable.models.get(key))
        results = _without_errors(call(key, subgraph, rows))
        if servable.models[key].is_inside:
            count = len(servable.models[key].states)
            results = [row[:-count] for row in results]
        return cast(list[tuple[Array, ...]], results)  # models make nothing else

    return run


def _method_runner(servable: LoadedServable, remote: RemoteCaller) -> servable_method.Runner:
    """Return the function that calls methods of servables from inside a stage function."""

    def run(
        name: str, method: str, version: int, rows: list[tuple[Value, ...]]
    ) -> list[tuple[Value, ...]]:
        if name == servable.declaration.name and version in (0, servable.version):
            if method not in servable.programs:
                raise NotFound(f"servable {name} has no method {method} here")
            return nested.run_method(servable.programs[method], rows)
        return _without_errors(remote.call_method(name, version, method, rows))

    return run


def _without_errors(outcomes: list[Outcome]) -> list[tuple[Value, ...]]:
    """Return `outcomes` if none is an error, else raise the first error."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, ServingError):
            raise outcome
        results.append(outcome)
    return results
