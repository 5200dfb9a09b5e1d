"""Warm-up with recorded requests: a worker runs those of `warmup.jsonl` before it gets others.

`count` of a line says how often it runs.
"""

import os
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from mindspore_serving import errors, log, wire
from mindspore_serving.core.graph import StageKind
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.servable import recorded_requests
from mindspore_serving.servable.recorded_requests import MAX_COUNT, RecordedRequest
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.job import PreparedMethod, RunningPart
from mindspore_serving.worker.loaded_servable import LoadedServable

FILE = "warmup.jsonl"
_WAIT_SECONDS = 600.0  # for a model on another thread
_CODEC = "ms_json"


def warm_up(servable: LoadedServable, directory: str) -> None:
    """Run the requests of the file in the version directory, or else in `directory`, if any.

    Raises StartError that names the line for a request that is invalid or fails.
    """
    paths = (os.path.join(directory, part, FILE) for part in (str(servable.version), ""))
    path = next(filter(os.path.isfile, paths), None)
    if path is None:
        return
    started, num_runs = time.monotonic(), 0
    for number, request in recorded_requests.read(path):
        where = f"{path}:{number}"
        program = _program_of(where, request, servable.programs)
        num_runs += request.count
        if request.count < 1 or num_runs > MAX_COUNT:
            raise StartError(
                f"{where}: count is {request.count}, expected at least 1 and at most {MAX_COUNT} "
                "in all lines"
            )
        for _ in range(request.count):
            _run(where, program, request.body)
    seconds = time.monotonic() - started
    name = servable.declaration.name
    log.info("%s: %d requests of %s ran in %.1f s", name, num_runs, FILE, seconds)


def _program_of(
    where: str, request: RecordedRequest, programs: dict[str, PreparedMethod]
) -> PreparedMethod:
    public = [name for name in programs if not name.startswith("@")]
    name = request.method or (public[0] if len(public) == 1 else "")
    program = programs.get(name)
    if program is None:
        near = errors.did_you_mean(name, public) or f"; methods are {', '.join(public)}"
        raise StartError(f"{where}: the servable has no method {name!r:.100}{near}")
    if any(stage.kind is StageKind.LANGUAGE for stage in program.method.stages):
        raise StartError(
            f"{where}: method {name} generates with a language model, which needs no warm-up"
        )
    return program


def _run(where: str, program: PreparedMethod, body: bytes) -> None:
    """Run a request to its end.  Raises StartError if an instance fails."""
    actions: SimpleQueue[Callable[[], None]] = SimpleQueue()
    executor = Executor({program.method.name: program}, actions.put)
    part = RunningPart(0, program, wire.worker_codec(_CODEC), None)
    try:
        executor.add(part, part.codec.decode([body], program.method, program.label))
        while not executor.finished:
            if executor.has_work:
                executor.run_next(time.monotonic())
            else:
                actions.get(timeout=_WAIT_SECONDS)()
    except (ServingError, Empty) as error:
        raise StartError(f"{where}: {error or 'a model did not answer'}") from error
    fault = next(filter(None, part.faults or ()), None)
    if fault is not None:
        raise StartError(f"{where}: {fault}")
