"""An agent runs one rank of a gang: it loads the model, joins, and runs predictions."""

import importlib.util
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindspore_serving import backends, log
from mindspore_serving.backends.base import LoadedModel, ModelSource
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature
from mindspore_serving.distributed.connecting import GangConnection, connect
from mindspore_serving.distributed.messages import (
    MAX_TENSORS,
    AgentSetup,
    JoinGang,
    Ran,
    RunRank,
    ToPeer,
    to_reports,
)
from mindspore_serving.errors import ServingError, StageFailed, StartError, TooLarge
from mindspore_serving.ipc.messages import to_fault
from mindspore_serving.process.entry import kill_group
from mindspore_serving.process.vocabulary import Beat, Exit
from mindspore_serving.servable.from_source import FromSource, compile_all
from mindspore_serving.wire import native

FORMATS = {
    ".mindir": "mindir",
    ".ms": "mindir_lite",
    ".onnx": "onnx",
    ".pt2": "pytorch",
    ".pt": "pytorch",
    ".py": "python",
}
MODEL = "model"  # name of the function or class in a .py file


def load(setup: AgentSetup) -> list[LoadedModel]:
    """Load a model from each file, in the order of the sub-graphs.  Raises StartError."""
    return [_load_file(setup, path) for path in setup.model_files]


def join(setup: AgentSetup, models: Sequence[LoadedModel]) -> GangConnection:
    """Join the gang as a rank.  Raises StartError if the worker refuses or has ended."""
    signatures = [_signature(model) for model in models]
    try:
        connection = connect(setup.address)
    except OSError as error:
        raise StartError(f"the worker at {setup.address} has ended: {error}") from error
    connection.ask(JoinGang(setup.rank, to_reports(signatures), os.getpid()))
    return connection


class CommandReader:
    """A reader of the worker's messages, for two threads."""

    def __init__(self, connection: GangConnection) -> None:
        self.is_stopped = False  # `Exit` was received
        self._connection = connection
        self._lock = threading.Lock()

    def receive(self) -> list[ToPeer]:
        """Wait for messages and return them.  Raises EOFError if the connection has ended."""
        with self._lock:
            messages = self._connection.receive(wait=True)
            self.is_stopped |= any(isinstance(message, Exit) for message in messages)
        return messages

    def drop_rest(self) -> None:
        """Read what is left, up to `Exit` or the end of the connection."""
        with suppress(EOFError, OSError):
            while not self.is_stopped:
                self.receive()


def serve(connection: GangConnection, models: Sequence[LoadedModel]) -> None:
    """Run predictions until the servable stops; kill this process if the worker is lost."""
    commands = CommandReader(connection)
    beats = threading.Thread(
        target=_send_beats, args=[connection, commands], name="beats", daemon=True
    )
    beats.start()
    with suppress(EOFError, OSError):
        while not commands.is_stopped:
            for message in commands.receive():
                if isinstance(message, RunRank):
                    connection.send(run(models, message))
    commands.drop_rest()
    if not commands.is_stopped:
        kill_group()
    for model in models:
        model.close()


def run(models: Sequence[LoadedModel], message: RunRank) -> Ran:
    """Run a prediction and return the reply, also for an error of the model."""
    try:
        inputs: Any = native.decode_values(bytearray(message.inputs)) if message.inputs else ()
        results = models[message.subgraph].run(list(inputs))
        outputs = native.encode_values(results) if message.returns else b""
        if len(outputs) > MAX_TENSORS:
            raise TooLarge(f"outputs of {len(outputs)} bytes, at most {MAX_TENSORS} are accepted")
        return Ran(message.id, outputs)
    except ServingError as error:
        return Ran(message.id, b"", to_fault(error))
    except Exception as error:
        log.error("a prediction failed", exc_info=True)
        return Ran(message.id, b"", to_fault(StageFailed(f"{type(error).__name__}: {error}")))


def _send_beats(connection: GangConnection, commands: CommandReader) -> None:
    """Send heartbeats; kill this process if the worker is lost, even while a model runs."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    while not poll.poll(connection.plan.beat_seconds * 1000):
        with suppress(OSError):
            connection.send(Beat())
    commands.drop_rest()
    if not commands.is_stopped:
        kill_group()


def _load_file(setup: AgentSetup, path: str) -> LoadedModel:
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise StartError(
            f"Model file '{path}' has a name that ends with none of {', '.join(FORMATS)}"
        )
    name = backends.resolve(FORMATS[suffix])
    source = ModelSource(
        spec=DeclaredModel(path, name, (path,), _factory(path) if name == "python" else None),
        paths=(path,),
        device_type=backends.choose_device(None, [name], setup.servable),
        device_id=setup.device_id,
        dec_key=setup.dec_key,
        dec_mode=setup.dec_mode,
    )
    return backends.open_backend(source)


def _factory(path: str) -> Callable[..., Any]:
    """Import a Python file and return its function or class `model`.  Raises StartError."""
    directory, name = os.path.dirname(path), f"agent_model_{Path(path).stem}"
    sys.path.append(directory)  # for modules in the directory of the file
    compile_all(directory)
    loader = FromSource(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except Exception as error:
        log.error("importing %s failed", path, exc_info=True)
        raise StartError(
            f"Model file '{path}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    factory: Callable[..., Any] | None = getattr(module, MODEL, None)
    if factory is None:
        raise StartError(f"Model file '{path}' defines no function or class '{MODEL}'")
    return factory


def _signature(model: LoadedModel) -> Signature:
    (signature,) = model.signature
    return signature
