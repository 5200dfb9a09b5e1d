"""A running server: the master and its front ends, started in order and stopped in reverse.

Lives on the event loop; `startup` has the public functions.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import ASGIApp

from mindspore_serving import __version__, log
from mindspore_serving.aio import on_thread
from mindspore_serving.cluster.local import LocalLauncher, open_mcp_log
from mindspore_serving.cluster.spreading import SpreadingLauncher
from mindspore_serving.core.deployment import Capacity, Deployment, RefusedServable
from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.core.service import Inference, ServableReadiness
from mindspore_serving.errors import AlreadyRunning, InvalidInputs, StartError
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends import protocols
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import LanguageModels
from mindspore_serving.frontends.chat.refusals import LanguageRefusals
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.http.app import guarded, make_router
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.frontends.openapi import DocumentOptions
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.frontends.request_log import RequestLog
from mindspore_serving.frontends.response_store import ResponseStore
from mindspore_serving.frontends.state.batch import LineFormat
from mindspore_serving.frontends.state.runner import BatchRunner
from mindspore_serving.frontends.state.store import StateStore
from mindspore_serving.frontends.tenants.audit import AuditedApp
from mindspore_serving.frontends.tenants.metering import MeteredInference
from mindspore_serving.frontends.v2.fast_infer import FastInfer
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Models
from mindspore_serving.frontends.v2.shared_memory import SharedMemory
from mindspore_serving.master.caching import CachingInference
from mindspore_serving.master.master import Master
from mindspore_serving.master.traffic import TrafficInference
from mindspore_serving.mcp.config import read_config
from mindspore_serving.mcp.servers import McpServers
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.server.adapter_control import MasterAdapterControl
from mindspore_serving.server.client_models import MasterClientModels
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.grpc_services import make_grpc_methods
from mindspore_serving.server.limit_counts import LimitCounts
from mindspore_serving.server.machines import Machines
from mindspore_serving.server.model_control import ClientModelControl
from mindspore_serving.server.processes.forwarded_rpc import RpcApp
from mindspore_serving.server.processes.messages import Serve
from mindspore_serving.server.processes.pool import FrontEndPool
from mindspore_serving.server.processes.session import SharedServices
from mindspore_serving.server.renewal import Renewal
from mindspore_serving.server.repository import DeploymentSource, ModelRepository
from mindspore_serving.server.tenant_logs import TenantLogs
from mindspore_serving.tracing.options import TraceOptions, change_ratio

if TYPE_CHECKING:
    from mindspore_serving.tracing.otlp import OtlpTracer

T = TypeVar("T")

CLOSE_GRACE = 1.0  # seconds for answers that are being sent
EXIT_GRACE = 5.0  # seconds for workers to exit

# Threshold of the garbage collector: requests create no reference cycles, so collect rarely.  At
# Python's default, 700, it runs several times per millisecond under 64 concurrent requests.
_GC_THRESHOLD = 50_000


class Serving:
    """The server that `start_*` starts and `stop` stops."""

    def __init__(self, on_all_ended: Callable[[], None]) -> None:
        self._local = LocalLauncher()
        self._launcher = SpreadingLauncher(self._local)
        self._master = Master(self._launcher, on_all_ended)
        master = self._master
        self.repository = ModelRepository(
            master.roll,
            lambda: master.deployments,
            master.control.readiness,
            master.registry.set_route,
        )
        self._tasks: list[asyncio.Task[None]] = []  # cancelled by `stop`
        self.machines = Machines(self._launcher)
        self._grpc: Http2GrpcServer | FrontEndPool | None = None
        self._http: HttpServer | FrontEndPool | None = None
        self._pool: FrontEndPool | None = None
        self.renewal = Renewal(self._renew_front_ends)
        self._memory = SharedMemory(is_enabled=True)  # registered by clients
        self._tracer: OtlpTracer | None = None
        self._routed = TrafficInference(CachingInference(master.dispatcher), master.dispatcher)
        self._metered = MeteredInference(self._routed, self.renewal.tenants, self._is_language)
        self._logs = TenantLogs(self._metered)
        self._limits = LimitCounts(self.renewal.tenants)
        self._inference: Inference = self._metered
        if log.has_requests():
            self._inference = RequestLog(self._inference)
        self._responses = ResponseCounter(is_logged=log.has_access_log())  # of both servers
        self.store: StateStore | None = None
        self.batches: BatchRunner | None = None
        self._mcp: McpServers | None = None
        self.is_deployed = False

    @classmethod
    async def create(cls, capacity: Capacity, on_all_ended: Callable[[], None]) -> "Serving":
        """Create a server; `on_all_ended` is called when all workers have ended for good."""
        serving = cls(on_all_ended)
        serving.set_capacity(capacity)
        if 0 < gc.get_threshold()[0] < _GC_THRESHOLD:  # not if the script has set or disabled it
            gc.set_threshold(_GC_THRESHOLD, 20, 20)
        return serving

    def set_capacity(self, capacity: Capacity) -> None:
        """Set the limits of requests and of loaded servables."""
        self._master.dispatcher.shares.limit = capacity.max_enqueued_requests
        self._master.budget.limit = capacity.max_loaded

    async def deploy(
        self,
        first: Sequence[Deployment | RefusedServable],
        source: DeploymentSource,
        poll_seconds: float,
        *,
        is_strict: bool = True,
    ) -> list[tuple[str, StartError]]:
        """Deploy `first`; then poll `source` every `poll_seconds` seconds (0: never).

        Unless `is_strict`, returns names and errors of servables that could not be loaded, if one
        could.  Raises StartError.
        """
        self.is_deployed = True
        deployments = await self.repository.begin(first, source)
        failed = await self._master.deploy(deployments, is_strict=is_strict)
        for deployment, error in failed:
            self.repository.on_failed(deployment.name, error)
        if poll_seconds:
            self._tasks.append(asyncio.create_task(self.repository.follow(poll_seconds)))
        return [(deployment.name, error) for deployment, error in failed]

    async def run(self, work: "Callable[[Serving], Coroutine[Any, Any, T]]") -> T:
        """Run `work` and return its result, after all front ends know its changes."""
        try:
            return await work(self)
        finally:
            if self._pool is not None:
                await self._pool.sync()

    async def describe(self) -> list[dict[str, Any]]:
        """Return rows about all servable versions, see `Control.describe`."""
        return self._master.control.describe()

    async def readiness(self) -> Sequence[ServableReadiness]:
        """Return the readiness of all servable versions."""
        return self._master.control.readiness()

    async def start_tracing(self, options: TraceOptions) -> None:
        """Record traces of requests to the servers and servables that are started from now on.

        Raises InvalidInputs if one was started before, ModuleNotFoundError without OpenTelemetry.
        """
        if self.is_deployed or self._grpc or self._http or self._tracer:
            raise InvalidInputs(
                "Serving Error: call start_tracing once, before servers are started"
            )
        from mindspore_serving.tracing.otlp import OtlpTracer

        change_ratio(None)  # by clients of a server before
        self._tracer = OtlpTracer(options)
        self._master.traces = options
        self._master.dispatcher.recorder = self._tracer

    async def start_grpc(self, options: FrontEndOptions) -> None:
        """Start the gRPC server.  Raises AlreadyRunning, InvalidInputs or StartError."""
        if self._grpc is not None:
            raise AlreadyRunning("Serving Error: Serving gRPC server is already running")
        where = addresses.parse(options.address, "Serving gRPC", allow_unix=True)
        self._logs.open(options)
        tls = self.renewal.certificates(options.ssl_config, as_the_original=True)
        methods = self._grpc_methods(options, self._v2(self._app_state(options), options))
        if options.front_ends > 1:
            self._grpc = await self._start_front_ends(options, where, methods)
        else:
            server = Http2GrpcServer(where, methods, options.limits, self._responses)
            await server.start(tls)
            self._grpc = server

    def _grpc_methods(self, options: FrontEndOptions, v2: V2) -> GrpcMethods:
        """Create the gRPC methods of a listener."""
        control, keys = self._master.control, self.renewal.keys(options)
        return make_grpc_methods(
            self._inference, control, options,
            keys=keys, v2=v2, tracer=self._tracer, audit=lambda: self._metered.audit,
        )  # fmt: skip

    async def _start_front_ends(
        self,
        options: FrontEndOptions,
        where: addresses.Address,
        methods: GrpcMethods,
        app: ASGIApp | None = None,
    ) -> FrontEndPool:
        """Serve an address by front ends; `methods` and `app` answer what they forward."""
        pool = await self._front_ends(options.front_ends)
        message = Serve(
            options=options,
            admission=self.renewal.admission(options),
            traces=self._master.traces,
            num_processes=pool.num_processes,
            has_http=app is not None,
        )
        await pool.serve(message, where, RpcApp(methods, pool.sync, app), methods.close)
        return pool

    async def start_http(self, options: FrontEndOptions) -> None:
        """Start the HTTP server.  Raises AlreadyRunning, InvalidInputs or StartError."""
        if self._http is not None:
            raise AlreadyRunning("Serving Error: RESTful server is already running")
        where = addresses.parse(options.address, "RESTful server", allow_unix=False)
        self._logs.open(options)
        rest = MsRest(options.max_message, options.use_status_codes, options.limits)
        tls = self.renewal.certificates(options.ssl_config)
        inference, keys = self._inference, self.renewal.keys(options)
        origins = OriginPolicy(where.host, options.allowed_hosts, options.allow_origins)
        v2, router = await self.open_routes(options)
        await self._limits.open(options, self.store)
        app = guarded(router, keys, origins)
        if self._metered.audit is not None:
            app = AuditedApp(app, self._metered.audit)
        methods = self._grpc_methods(options, v2)
        if options.front_ends > 1:
            self._http = await self._start_front_ends(options, where, methods, app)
        else:
            refusals = LanguageRefusals(self._master.control, options.limits, FastInfer(v2))
            path = FastPath(inference, rest, keys, origins, refusals)
            limits, responses = options.limits, self._responses
            server = HttpServer(
                where, app, path, limits, responses, tracer=self._tracer, calls=methods
            )
            await server.start(tls)
            self._http = server
        if self.batches is not None:
            self.batches.start(router)
        self._tasks.append(asyncio.create_task(self._master.control.past.follow()))

    async def open_routes(
        self,
        options: FrontEndOptions,
        lines: Mapping[str, LineFormat] = protocols.LINES,
        priority: int = BACKGROUND,
    ) -> tuple[V2, ASGIApp]:
        """Open the stored state; return protocol v2, and all routes without access control.

        `lines` and `priority` are those of batches.  Raises StartError.
        """
        store = await on_thread("state", StateStore, options.state_directory)
        self.store = store
        if store.is_durable:
            limits = options.language_limits
            sweep = ResponseStore(store).fail_interrupted if store.is_shared else lambda: None
            self.batches = BatchRunner(store, lines, limits, priority=priority, sweep=sweep)
        if options.mcp_config:
            self._mcp = McpServers(read_config(options.mcp_config), open_mcp_log)
        state = self._app_state(options)
        state = replace(state, store=store, batches=self.batches, mcp=self._mcp)
        state.responses.fail_interrupted()
        v2 = self._v2(state, options)
        has_keys = bool(options.api_keys or options.key_file is not None)
        visible = DocumentOptions(has_keys, options.use_status_codes)
        mounted = protocols.mount(state, options.llm_serving_form, v2, visible)
        router = make_router(
            self._inference, state.control,
            partial(self._metrics, mounted, has_vllm=options.vllm_metrics),
            rest=MsRest(options.max_message, options.use_status_codes, options.limits),
            routes=mounted.routes,
            allow_loading=options.allow_loading, describe=mounted.describe,
            list_batches=self.batches.progress if self.batches is not None else None,
            report_usage=self._metered.report,
        )  # fmt: skip
        return v2, router

    async def _renew_front_ends(self) -> None:
        if self._pool is not None:
            await self._pool.renew()

    async def _front_ends(self, num_processes: int) -> FrontEndPool:
        """Return the front-end processes, which both servers share, starting them if necessary.

        Raises InvalidInputs or StartError.
        """
        if self._pool is None:
            self._pool = FrontEndPool(num_processes, self._master.control, self.renewal.admission)
            services = SharedServices(self._metered, self._responses, self._pool.sync)
            services.recorder = self._tracer
            await self._pool.start(services)
        if self._pool.num_processes != num_processes:
            raise InvalidInputs(
                f"Parameter 'front_ends' is {num_processes}, but {self._pool.num_processes} for "
                "the other server: expected the same for both"
            )
        return self._pool

    async def announce_end(self) -> None:
        """Report not ready from now on, and serve all the same until `stop`."""
        self._master.control.is_ending = True

    async def stop(self, seconds: float) -> None:
        """Drain and stop within `seconds`; with 0 all requests are refused at once.

        Stops accepting connections, lets requests finish, refuses the rest, then stops workers.
        """
        self._launcher.close()
        self._local.close()
        self.renewal.cancel()
        for task in self._tasks:
            task.cancel()
        if self.batches is not None:
            await self.batches.close()
        grace = min(EXIT_GRACE, seconds / 2) if seconds else EXIT_GRACE
        drain = max(0.0, seconds - grace - CLOSE_GRACE)
        closing = [
            asyncio.ensure_future(server.stop(drain + CLOSE_GRACE))
            for server in {self._grpc, self._http, self._pool}
            if server is not None
        ]
        if drain:  # requests that are being received are not in flight yet, but need workers
            draining = asyncio.ensure_future(self._master.drain(drain))
            await asyncio.wait([draining, *closing], timeout=drain)
        await self._master.stop(grace)
        await self.machines.stop()
        if closing:
            await asyncio.wait(closing)
        self._grpc = self._http = self._pool = None
        self._memory.close()
        if self._mcp is not None:
            await self._mcp.close()
            self._mcp = None
        await self._limits.close()
        if self.store is not None:
            await self.store.close()
            self.store = self.batches = None
        await self._logs.close()
        if self._tracer is not None:
            await on_thread("traces", self._tracer.close)

    def adapter_control(self, directories: Sequence[str] | None) -> MasterAdapterControl:
        """Return a control of LoRA adapters below `directories`; None allows any directory."""
        return MasterAdapterControl(self._master.adapters, self._master.control, directories)

    def _app_state(self, options: FrontEndOptions) -> AppState:
        """Return the application state of a server."""
        inference, control = self._inference, self._master.control
        models = LanguageModels(inference, control, options.language)
        repository = ClientModelControl(self.repository, is_allowed=options.allow_loading)
        adapters = self.adapter_control(options.lora_directories)
        return AppState(
            models,
            inference,
            control,
            options.max_message,
            repository,
            adapters,
            MasterClientModels(self.repository, options.pull_prefixes),
        )

    def _is_language(self, servable: str) -> bool:
        models = self._master.control.language_models()
        return any(name == servable for name, _, _ in models)

    def _metrics(self, mounted: protocols.Mounted, *, has_vllm: bool) -> Page:
        """Return the page of current metrics."""
        page = Page()
        page.add("serving_build_info", 1, __version__)
        for (protocol, code), count in self._responses.counts.items():
            page.add("serving_responses_total", count, protocol, str(code))
        for part in (self._metered, self._logs, self._limits, self.renewal, self.repository):
            part.add_metrics(page)
        self._master.add_metrics(page, has_vllm=has_vllm)
        mounted.add_metrics(page)
        return page

    def _v2(self, state: AppState, options: FrontEndOptions) -> V2:
        """Return protocol v2 for a server; all share the clients' regions of shared memory."""
        memory = self._memory if options.client_shared_memory else SharedMemory()
        models, traces = V2Models(state.control, state.models), self._master.traces
        return V2(state, models, memory, options.limits, traces)
