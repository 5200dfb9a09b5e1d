"""GRPCInferenceService: protocol v2 over gRPC."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from msgspec.structs import asdict

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.frontends.grpc.calls import AdmittedCall, CallGate, abort
from mindspore_serving.frontends.grpc.unary import DirectMethod, Headers, Parts
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.v2 import answers, repository, settings
from mindspore_serving.frontends.v2.descriptions import (
    server_metadata,
    to_config,
    to_metadata,
    to_statistics,
)
from mindspore_serving.frontends.v2.errors import to_serving_error
from mindspore_serving.frontends.v2.inference import V2, Selected
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.frontends.v2.shared_memory import RemoteRegionError
from mindspore_serving.frontends.v2.stream import Stream, UnsentReplies
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire.v2 import messages
from mindspore_serving.wire.v2.messages import ModelTarget
from mindspore_serving.wire.v2.outputs import MANY
from mindspore_serving.wire.v2.request import InferRequest, to_version

SERVICE = "inference.GRPCInferenceService"
Method: TypeAlias = Callable[[Any], "Awaitable[Any]"]


def handler(v2: V2, gate: CallGate, unsent: UnsentReplies | None = None) -> Any:
    """Return the handler of the service, whose streams count in `unsent`."""
    service = Service(v2, gate)
    methods = {
        name: grpc.stream_unary_rpc_method_handler(service.answer_with(name, method))
        for name, method in service.methods.items()
    }
    direct: Any = DirectMethod(f"{SERVICE}/ModelInfer", InferMessages(v2), v2.state.inference, gate)
    methods["ModelInfer"] = grpc.stream_unary_rpc_method_handler(direct)
    unsent = unsent or UnsentReplies(gate.limits.max_unsent_memory)
    stream = Stream(v2, gate, unsent, f"{SERVICE}/ModelStreamInfer")
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(stream.answer)
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class InferMessages:
    """Messages of ModelInfer; the state of a call is its model and its request."""

    passed_on = RemoteRegionError

    def __init__(self, v2: V2) -> None:
        self._v2 = v2

    def begin(
        self, body: Buffer, timeout: float, headers: Headers
    ) -> tuple[Request | Awaitable[Parts], tuple[V2Model, InferRequest]]:
        """Return the request in a message; of a language model, its response.

        Raises ServingError and RemoteRegionError.
        """
        message, raw = messages.read(body)
        target = messages.target_of(message)
        model = self._v2.models.find(target.model, target.version)
        request = messages.parse(message, raw, self._v2.memory.read, signature=model.signature)
        options, state = RequestOptions(timeout), (model, request)
        if model.language is None:
            return self._v2.wrap(model, request, options), state
        return self._finish(state, self._v2.infer(model, request, options, headers)), state

    def answer(self, state: tuple[V2Model, InferRequest], reply: Reply) -> Parts | Awaitable[Parts]:
        """Return the response for a reply; many instances are joined on a thread."""
        if len(reply.instances) > MANY:
            return self._finish(state, self._v2.finish_soon(state[1], reply))
        return _to_response(state, self._v2.finish(state[1], reply))

    async def _finish(
        self, state: tuple[V2Model, InferRequest], outputs: Awaitable[Selected]
    ) -> Parts:
        return _to_response(state, await outputs)

    def refuse(self, _: object, error: Exception) -> ServingError:
        """Return the error that the status of a call tells of."""
        return to_serving_error(error)


def _to_response(state: tuple[V2Model, InferRequest], outputs: Selected) -> Parts:
    model, request = state
    target = ModelTarget(model.name, outputs.version or model.version)
    return [messages.answer(target, request.id, outputs)]


class Service:
    """Unary methods, which return the fields of their responses."""

    def __init__(self, v2: V2, gate: CallGate) -> None:
        self._v2 = v2
        self._gate = gate
        self.methods: dict[str, Method] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": self._memory_status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._nothing,
            "CudaSharedMemoryUnregister": self._nothing,
            "TraceSetting": self._trace,
            "LogSettings": self._log,
        }

    def answer_with(
        self, name: str, method: Method
    ) -> Callable[[object, Context], Awaitable[bytes]]:
        """Return a handler that parses the request of the call `name` for `method`."""
        request_kind: type[Message] = getattr(pb, f"{name}Request")
        response_kind: type[Message] = getattr(pb, f"{name}Response")

        async def answer(_: object, context: Context) -> bytes:
            call = await self._gate.admit(context, f"{SERVICE}/{name}")
            try:
                fields = msgspec.to_builtins(await method(_parse(request_kind, call)))
                response = json_format.ParseDict(fields, response_kind())
                return bytes(response.SerializeToString())
            except Exception as error:
                await abort(context, to_serving_error(error))
            finally:
                call.leave()

        return answer

    async def _live(self, _: pb.ServerLiveRequest) -> answers.ServerLive:
        return answers.ServerLive(True)

    async def _ready(self, _: pb.ServerReadyRequest) -> answers.ServerReady:
        return answers.ServerReady(self._v2.state.control.is_ready)

    async def _model_ready(self, request: pb.ModelReadyRequest) -> answers.ServerReady:
        version = to_version(request.version)
        return answers.ServerReady(self._v2.models.is_ready(request.name, version))

    async def _metadata(self, _: pb.ServerMetadataRequest) -> answers.ServerMetadata:
        return server_metadata(has_memory=self._v2.memory.is_enabled)

    async def _model_metadata(self, request: pb.ModelMetadataRequest) -> answers.ModelMetadata:
        models = self._v2.models
        return to_metadata(models.find(request.name, to_version(request.version)))

    async def _model_config(self, request: pb.ModelConfigRequest) -> dict[str, Any]:
        models = self._v2.models
        return {"config": to_config(models.find(request.name, to_version(request.version)))}

    async def _statistics(self, request: pb.ModelStatisticsRequest) -> answers.Statistics:
        models = self._v2.models.loaded(request.name, to_version(request.version))
        return to_statistics(self._v2.state.control, models)

    async def _index(self, request: pb.RepositoryIndexRequest) -> dict[str, Any]:
        source, models = self._v2.state.repository, self._v2.models
        return {"models": await repository.index(source, models, only_ready=request.ready)}

    async def _load(self, request: pb.RepositoryModelLoadRequest) -> dict[str, Any]:
        parameters = messages.to_parameters(request.parameters)
        source, models = self._v2.state.repository, self._v2.models
        await repository.load(source, models, request.model_name, parameters)
        return {}

    async def _unload(self, request: pb.RepositoryModelUnloadRequest) -> dict[str, Any]:
        await repository.unload(self._v2.state.repository, request.model_name)
        return {}

    async def _memory_status(self, request: pb.SystemSharedMemoryStatusRequest) -> dict[str, Any]:
        return {"regions": {region.name: region for region in self._v2.memory.status(request.name)}}

    async def _register(self, request: pb.SystemSharedMemoryRegisterRequest) -> dict[str, Any]:
        location = request.key, request.offset, request.byte_size
        self._v2.memory.register(request.name, *location)
        return {}

    async def _unregister(self, request: pb.SystemSharedMemoryUnregisterRequest) -> dict[str, Any]:
        self._v2.memory.unregister(request.name)
        return {}

    async def _nothing(self, _: Message) -> dict[str, Any]:
        """Answer with no fields: memory of GPUs is never registered, but clients unregister it."""
        return {}

    async def _trace(self, request: pb.TraceSettingRequest) -> dict[str, Any]:
        changes = {name: list(setting.value) or None for name, setting in request.settings.items()}
        present = settings.change_trace_settings(
            changes, self._v2.traces, self._v2.state.repository, request.model_name
        )
        return {
            "settings": {
                name: {"value": value if isinstance(value, list) else [value]}
                for name, value in asdict(present).items()
            }
        }

    async def _log(self, request: pb.LogSettingsRequest) -> dict[str, Any]:
        changes = messages.to_parameters(request.settings)
        settings.check_log_changes(self._v2.state.repository, changes)
        present = settings.change_log_settings(changes)
        fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        return {
            "settings": {
                name: {fields[type(value)]: value} for name, value in asdict(present).items()
            }
        }


def _parse(kind: type[Message], call: AdmittedCall) -> Message:
    try:
        return kind.FromString(call.body)
    except DecodeError:
        raise InvalidInputs(f"the request is not a valid {kind.__name__}") from None
