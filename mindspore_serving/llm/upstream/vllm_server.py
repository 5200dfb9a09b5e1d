"""A vLLM server with a plugin for Ascend: a child process of the worker, used as an upstream.

vllm-ascend and vllm-mindspore belong to other versions of vLLM than `llm.engines` knows; their
command line and their HTTP API stay the same.
"""

import http.client
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mindspore_serving import loading, log
from mindspore_serving.core.default_sampling import choose_sampling, operator_sampling
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.model_files import find_config, read_recommended
from mindspore_serving.llm.config import OPTIONS, EngineConfig
from mindspore_serving.llm.upstream.engine import UpstreamModel
from mindspore_serving.llm.upstream.options import TAKEN, UpstreamOptions
from mindspore_serving.llm.upstream.vllm_output import EngineOutput
from mindspore_serving.llm.upstream.vllm_plugins import (
    VllmPlugin,
    check_variables,
    check_version,
    describe,
)
from mindspore_serving.llm.visible_devices import VARIABLES as DEVICES
from mindspore_serving.llm.visible_devices import show_device
from mindspore_serving.llm.vllm_options import NAMES, VARIABLES, make_arguments, to_words
from mindspore_serving.process.child import Child, Program, exit_text

KEY = "VLLM_API_KEY"  # environment variable in which vLLM finds the key that it asks for
REPORT_SECONDS = 10.0  # interval of lines about a start in the worker's log
_HOST = "127.0.0.1"
_MODULE = "mindspore_serving.llm.upstream.vllm_entry"
_POLL_SECONDS, _HEALTH_SECONDS, _END_SECONDS = 0.2, 5.0, 20.0
_WITHOUT_EFFECT = ("max_num_waiting", "max_num_waiting_tokens")  # set for all models of a server
_OPTIONS = frozenset({*NAMES, *TAKEN, "device", "dtype", "generation_config", *_WITHOUT_EFFECT})
_OURS = ("model", "host", "port", "uds", "served_model_name", "api_key")
_KIND = "npu"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model for a server of `plugin`: its directory, its name and its options."""

    plugin: VllmPlugin
    directory: Path
    name: str
    config: EngineConfig
    options: Mapping[str, Any]

    def words(self, port: int) -> list[str]:
        """Return the module to run and its command line.  Raises StartError for an option."""
        if not self.directory.is_dir() or is_gguf(self.directory):
            raise StartError(
                f"path is {str(self.directory)!r}, but {self.plugin.name} reads directories with "
                "config.json"
            )
        for option in filter(self.config.is_set, OPTIONS):
            if option not in _OPTIONS:
                accepted = ", ".join(sorted(_OPTIONS))
                raise StartError(
                    f"engine 'vllm' with {self.plugin.name} has no option {option}, expected any "
                    f"of {accepted}; arguments of vLLM are engine options"
                )
        for option in _OURS:
            if option in self.options:
                raise StartError(f"engine option {option!r} is set by the server: leave it out")
        arguments = {
            "host": _HOST,
            "port": port,
            "served_model_name": self.name,
            **make_arguments(self.config),
            **self.options,
        }
        return [
            self.plugin.module, *self.plugin.arguments, str(self.directory), *to_words(arguments)
        ]  # fmt: skip


class VllmServer:
    """The process of a server with one model.  Raises StartError if it cannot be started."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self.output = EngineOutput()
        self._began = time.monotonic()
        with socket.socket() as reserved:  # keeps the port from other processes until it is used
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((_HOST, 0))
            self.port = reserved.getsockname()[1]
            words = model.words(self.port)
            log.info("starting %s: python -m %s", describe(model.plugin), " ".join(words))
            reader, writer = os.pipe2(os.O_CLOEXEC)
            try:
                program = Program(
                    _MODULE, words, variables=_variables(), stdout=writer, stderr=writer
                )
                self._child = Child(program)
            except OSError as error:
                os.close(reader)
                raise StartError(f"engine 'vllm' cannot be started: {error}") from error
            finally:
                os.close(writer)
        self._thread = threading.Thread(target=self._copy, args=[reader], daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of its API."""
        return f"http://{_HOST}:{self.port}/v1"

    @property
    def has_ended(self) -> bool:
        """True once its process has ended."""
        return self._child.poll() is not None

    def wait_until_ready(self) -> None:
        """Wait until the server answers, however long it takes, and report how far it is.

        Raises StartError with the reason if its process ends.
        """
        shown, reported = "", self._began
        lines, last_line = 0, self._began
        while not self._is_healthy():
            if self.has_ended:
                raise StartError(self.reason())
            now = time.monotonic()
            if self.output.num_lines != lines:
                lines, last_line = self.output.num_lines, now
            text = f"{self._model.plugin.name} is {self.output.text}, {now - self._began:.0f} s"
            if now - last_line >= REPORT_SECONDS:
                text += f", no output for {now - last_line:.0f} s"
            loading.reached(self.output.share, text)
            if self.output.text != shown or now - reported >= REPORT_SECONDS:
                shown, reported = self.output.text, now
                log.info("%s", text)
            time.sleep(_POLL_SECONDS)

    def reason(self) -> str:
        """Return why its process has ended, and log the last lines of the rank that failed first.

        Waits for the end of the process and of its output.
        """
        status = self._child.join()
        self._child.close()  # ends the other ranks, which hold the pipe of the output
        self._thread.join(_END_SECONDS)
        log.error("last lines of %s, which failed first:", self.output.failed or "the server")
        for line in self.output.last_lines():
            print(f"  {line}", file=sys.stderr)
        name, seconds = self._model.plugin.name, time.monotonic() - self._began
        return (
            f"engine vllm ({name}) ended after {seconds:.0f} s ({exit_text(status)}): "
            f"{self.output.reason()}"
        )

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` on another thread when the process has ended."""

        def wait() -> None:
            self._child.join()
            ended()

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """Ask the server to end, and kill its process group if it does not."""
        self._child.terminate()
        with suppress(TimeoutError):
            self._child.join(_END_SECONDS)
        self._child.close()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=_HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _copy(self, reader: int) -> None:
        """Copy the output to the log of this worker, until the last process has closed it."""
        with open(reader, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
                self.output.feed(data)
        self.output.feed(b"")


class VllmServerModel(UpstreamModel):
    """A model of a server that this worker has started; arguments as those of `UpstreamModel`."""

    def __init__(self, model: LocalModel, server: VllmServer, wake: Callable[[], None]) -> None:
        self._model_here, self._process = model, server
        options = UpstreamOptions(
            url=server.url, model=model.name, key_variable=KEY, dialect="vllm"
        )
        super().__init__(options, model.config, wake)
        server.watch(wake)

    def collect(self) -> None:
        """Deliver events.  Raises RuntimeError if the server has ended: the worker ends, too."""
        super().collect()
        if self._process.has_ended:
            raise RuntimeError(self._process.reason())

    def _set_unready(self, reason: str) -> None:
        if not reason:
            self._process.output.note_health()
        super()._set_unready(reason)

    def close(self) -> None:
        """End the client, then the server."""
        super().close()
        self._process.close()

    def _card(self, length: int) -> ModelCard:
        model = self._model_here
        recommended = {}
        if model.config.generation_config == "auto":
            recommended = read_recommended(model.directory)
        chosen = choose_sampling(recommended, operator_sampling(model.config))
        names = find_config(model.directory).get("architectures") or ["unknown"]
        return msgspec.structs.replace(
            super()._card(length),
            architecture=str(names[0]),
            runtime="vllm",
            dtype=model.config.dtype,
            quantization=model.config.quantization or "",
            sampling=tuple(chosen.values.items()),
            sampling_source=chosen.source,
            sampling_cuts=chosen.cuts,
            max_num_seqs=model.config.max_num_seqs,
            num_ranks=model.config.tensor_parallel,
            summary=f"computed by {describe(model.plugin)}",
        )


def open_server(model: LocalModel, wake: Callable[[], None]) -> VllmServerModel:
    """Start a server with `model`, and wait until it answers.  Raises StartError."""
    check_version(model.plugin)
    passed = check_variables(model.plugin)
    _check_device(model.config.device)
    os.environ.setdefault(KEY, secrets.token_urlsafe(32))  # else any user could call it
    log.info("variables for %s: %s", model.plugin.name, " ".join(passed) or "none")
    server = VllmServer(model)
    try:
        server.wait_until_ready()
        return VllmServerModel(model, server, wake)
    except BaseException:
        server.close()
        raise


def _variables() -> dict[str, str | None]:
    return {name: value for name, value in VARIABLES.items() if name not in os.environ}


def _check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind not in ("auto", _KIND):
        raise InvalidInputs(f"device is {device!r}, but this vllm is for Ascend: expected npu")
    if number:
        show_device(_KIND, number)
        log.info("%s is %s", DEVICES[_KIND], os.environ[DEVICES[_KIND]])
