"""OM, the offline format of Ascend: named so that the declaration is understood, not run here."""

from collections.abc import Sequence

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.core.value import Signature
from mindspore_serving.errors import StartError


class OmBackend:
    """Refuses every model: no runtime of this package loads OM."""

    @classmethod
    def load(cls, source: ModelSource) -> "OmBackend":
        """Raises StartError, always."""
        where = "" if source.device_type == "ascend" else " and runs only on an Ascend device"
        raise StartError(
            f"Load model '{source.spec.key}' failed: format OM is not supported{where}; export the "
            "model as MindIR, or install a package that registers a backend for 'om'"
        )

    @property
    def signature(self) -> tuple[Signature, ...]:
        """Nothing: no model of this format was loaded."""
        return ()

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Not reached: `load` never returns."""
        raise StartError("format OM is not supported")

    def close(self) -> None:
        """Nothing to give back."""
