"""What the routes of every HTTP protocol are made from."""

from dataclasses import dataclass, field

from mindspore_serving.core.service import AdapterControl, Control, Inference, ModelControl
from mindspore_serving.frontends.chat.models import LanguageModels
from mindspore_serving.frontends.response_store import ResponseStore


@dataclass(frozen=True, slots=True)
class AppState:
    """One HTTP server's view of what is served.  `max_body` is in bytes; without a
    `repository` nobody can load or unload models, without `adapters` no adapters.
    """

    models: LanguageModels
    inference: Inference
    control: Control
    max_body: int
    repository: ModelControl | None = None
    adapters: AdapterControl | None = None
    responses: ResponseStore = field(default_factory=ResponseStore)
