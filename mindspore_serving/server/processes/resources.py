"""Shared resources of the servers of a front-end process, and their access policy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from mindspore_serving.server.processes.master_app import MasterCalls
from mindspore_serving.server.processes.messages import Admission
from mindspore_serving.tls import Certificates
from mindspore_serving.tracing.request_span import Tracer


@dataclass(slots=True)
class FrontEndResources:
    """The objects that the servers of a front-end process share.

    Args:
        inference: sends requests to the master.
        catalog: the state of the servables.
        master: calls the applications of the master.
        responses: numbers of responses.
        take_memory: allocates memory that the master can read, too; None if there is none.
        tracer: None if requests are not traced.
    """

    inference: Inference
    catalog: Catalog
    master: MasterCalls
    responses: ResponseCounter
    take_memory: Callable[[int], memoryview | None]
    tracer: Tracer | None = None

    def v2(self, options: FrontEndOptions) -> V2:
        """Return protocol v2; shared memory of clients is registered with the master only."""
        models = LanguageModels(self.inference, self.catalog, options.language)
        state = AppState(models, self.inference, self.catalog, options.max_message)
        memory = RemoteSharedMemory() if options.client_shared_memory else SharedMemory()
        return V2(state, V2Models(self.catalog, models), memory, options.limits)


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """The API keys whose requests a front end answers itself: keys without limits.

    Requests with other keys, or none, are forwarded: only the master can count or refuse them.  If
    the server `is_open` (has no keys), a front end answers all requests.
    """

    keys: Keys
    is_open: bool

    @classmethod
    def of(cls, api_keys: Sequence[ApiKey], *, is_open: bool) -> "LocalKeys":
        """Create the keys of a server with `api_keys`."""
        keys = cls(Keys(), is_open=is_open)
        keys.replace(api_keys)
        return keys

    def replace(self, api_keys: Sequence[ApiKey]) -> None:
        """Replace the keys; a server does not become open, nor stop being open."""
        self.keys.replace(key for key in api_keys if not key.limits)

    def accepts(self, fields: Mapping[bytes, bytes]) -> bool:
        """Return whether this process answers a request with these headers."""
        if self.is_open:
            return True
        try:
            self.keys.find_in(fields)
        except Unauthorized:
            return False
        return True


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The API keys and the TLS certificate of one server of a front end."""

    keys: LocalKeys
    certificates: Certificates | None

    @classmethod
    def of(cls, options: FrontEndOptions, admission: Admission) -> "AccessPolicy":
        """Create the policy of a server.  Raises StartError for an invalid certificate."""
        tls, pem = options.ssl_config, admission.pem
        certificates = None if tls is None or pem is None else Certificates(tls, pem)
        has_keys = bool(options.api_keys) or options.key_file is not None
        return cls(LocalKeys.of(admission.keys, is_open=not has_keys), certificates)

    def replace(self, admission: Admission) -> None:
        """Replace keys and certificate.  Raises StartError, and keeps the old certificate then."""
        self.keys.replace(admission.keys)
        if self.certificates is not None and admission.pem is not None:
            self.certificates.replace(admission.pem)


def share_of(options: FrontEndOptions, num_processes: int) -> ServerLimits:
    """Return the limits of a front end: its share of memory, but enough for the largest message."""
    limits, largest = options.limits, options.max_message
    return replace(
        limits,
        max_body_memory=max(limits.max_body_memory // num_processes, largest),
        max_unsent_memory=max(limits.max_unsent_memory // num_processes, largest),
    )
