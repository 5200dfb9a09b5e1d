"""What the servers of a front-end process are made from."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.types import ASGIApp

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Inference
from mindspore_serving.errors import Unauthorized
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import LanguageModels
from mindspore_serving.frontends.keys import ApiKey, Keys
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Models
from mindspore_serving.frontends.v2.shared_memory import RemoteSharedMemory, SharedMemory
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.processes.catalog import Catalog
from mindspore_serving.server.processes.messages import Admission
from mindspore_serving.tls import Certificates
from mindspore_serving.tracing.request_span import Tracer


@dataclass(slots=True)
class Parts:
    """`app` is that of the master; `refresh` has all front ends know what is served; `take_memory`
    gives memory that the master reads, too.
    """

    inference: Inference
    catalog: Catalog
    app: ASGIApp
    responses: ResponseCounter
    refresh: Callable[[], Awaitable[None]]
    take_memory: Callable[[int], memoryview | None]
    tracer: Tracer | None = None

    def v2(self, options: FrontEndOptions) -> V2:
        """Protocol v2.  The master has the regions that clients have registered."""
        models = LanguageModels(self.inference, self.catalog, options.language)
        state = AppState(models, self.inference, self.catalog, options.max_message)
        memory = RemoteSharedMemory() if options.client_shared_memory else SharedMemory()
        return V2(state, V2Models(self.catalog, models), memory, options.limits)


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """Whose requests a front end answers: everybody's, or those of keys without limits.  Only the
    master can count what comes with the others, and refuse what has no key.
    """

    keys: Keys
    is_open: bool

    @classmethod
    def of(cls, api_keys: Sequence[ApiKey]) -> "OwnKeys":
        own = cls(Keys(), is_open=not api_keys)
        own.replace(api_keys)
        return own

    def replace(self, api_keys: Sequence[ApiKey]) -> None:
        """Accept these from now on; there are always some, or never."""
        self.keys.replace(
            key for key in api_keys if key.max_requests is None and key.requests_per_minute is None
        )

    def accepts(self, fields: Mapping[bytes, bytes]) -> bool:
        """Of a request with these headers."""
        if self.is_open:
            return True
        try:
            self.keys.find(fields.get(b"authorization"), fields.get(b"x-api-key"))
        except Unauthorized:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Door:
    """What a server of a front end lets in by."""

    keys: OwnKeys
    certificates: Certificates | None

    @classmethod
    def of(cls, options: FrontEndOptions, admission: Admission) -> "Door":
        """Raises StartError."""
        tls, pem = options.ssl_config, admission.pem
        certificates = None if tls is None or pem is None else Certificates(tls, pem)
        return cls(OwnKeys.of(admission.keys), certificates)

    def replace(self, admission: Admission) -> None:
        """Raises StartError; then the certificate of before stays."""
        self.keys.replace(admission.keys)
        if self.certificates is not None and admission.pem is not None:
            self.certificates.replace(admission.pem)


def share_of(options: FrontEndOptions, num_processes: int) -> ServerLimits:
    """Of memory for bodies and answers a front end has its share, but room for the largest
    message.
    """
    limits, largest = options.limits, options.max_message
    return replace(
        limits,
        max_body_memory=max(limits.max_body_memory // num_processes, largest),
        max_unsent_memory=max(limits.max_unsent_memory // num_processes, largest),
    )
