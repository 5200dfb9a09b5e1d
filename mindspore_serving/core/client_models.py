"""Models that clients download, create, copy and delete while the server runs.  No I/O."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Step of a download; `digest`, `total` and `completed` bytes are of what is downloaded."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientModel:
    """Model that clients have made, under the name by which they call it.

    `servable` answers its requests. `source` is the name of the download, or of the model that it
    is made of; `options` are those of its engine that were set. `size` is in bytes, `modified` in
    seconds since 1970.
    """

    name: str
    servable: str
    source: str
    digest: str = ""
    size: int = 0
    licence: str = ""
    modified: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """Request to make `name` of another model, with default parameters and a system message.

    `modelfile` is the text of an Ollama Modelfile, which replaces the other fields.
    """

    name: str
    source: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    modelfile: str = ""


class ClientModelStore(Protocol):
    """Changes of models by clients.

    `is_allowed` tells that the operator allows them; without it all changes raise Forbidden.
    """

    @property
    def is_allowed(self) -> bool: ...

    def listed(self) -> Sequence[ClientModel]:
        """Return the models that clients have made."""
        ...

    def find(self, name: str) -> ClientModel | None:
        """Return the model that a client calls `name`; None if clients made none."""
        ...

    def pull(self, name: str) -> AsyncIterator[PullProgress]:
        """Download a model and serve it; iterate over the steps.

        Several callers share a download; when the last one closes its iterator, it is stopped.
        Raises Forbidden, InvalidInputs or Overloaded at once, and any ServingError later.
        """
        ...

    def create(self, model: NewModel) -> AsyncIterator[PullProgress]:
        """Make a model of another one, which is downloaded if it has to be; raises as `pull`."""
        ...

    async def copy(self, source: str, target: str) -> None:
        """Give a model one more name.  Raises NotFound, Forbidden, InvalidInputs or Overloaded."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a model that clients have made; the last name unloads it.

        Raises NotFound, or Forbidden for a model of the operator.
        """
        ...
