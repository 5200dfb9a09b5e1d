"""State of one HTTP server that the routes of every protocol share."""

from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.client_models import ClientModelStore
from mindspore_serving.core.service import AdapterControl, Control, Inference, ModelControl
from mindspore_serving.frontends.chat.models import LanguageModels
from mindspore_serving.frontends.conversation_store import ConversationStore
from mindspore_serving.frontends.response_store import ResponseStore
from mindspore_serving.frontends.state.runner import BatchRunner
from mindspore_serving.frontends.state.store import StateStore
from mindspore_serving.mcp.servers import McpServers


@dataclass(frozen=True, slots=True)
class AppState:
    """State behind the routes of one HTTP server: models, limits and control.

    `max_body` is in bytes.  Models can be loaded and unloaded only with a `repository`, adapters
    only with `adapters`, and made by clients only with `client_models`.  Batches and files need
    `batches`, which runs those in `store`.  `background` has the responses that run in the
    background, by owner and id, and `held` the conversations to which a response will add items.
    `mcp` has the MCP servers whose tools requests can name.
    """

    models: LanguageModels
    inference: Inference
    control: Control
    max_body: int
    repository: ModelControl | None = None
    adapters: AdapterControl | None = None
    client_models: ClientModelStore | None = None
    store: StateStore = field(default_factory=StateStore)
    batches: BatchRunner | None = None
    background: dict[tuple[str, str], Any] = field(default_factory=dict)
    held: set[tuple[str, str]] = field(default_factory=set)
    mcp: McpServers | None = None

    @property
    def responses(self) -> ResponseStore:
        """Stored responses."""
        return ResponseStore(self.store)

    @property
    def conversations(self) -> ConversationStore:
        """Stored conversations."""
        return ConversationStore(self.store)
