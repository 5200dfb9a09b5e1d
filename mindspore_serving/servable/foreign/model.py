"""A model as the directory of another server describes it, in the terms of this server."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mindspore_serving.core.declaration import DeclaredModel, WarmUpSample
from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError

_MAX_LENGTH = 100  # characters of a name in a note


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """Model of another server.

    `server` and `file` name the description that was read.  `options` are fields of
    `ServableOptions`, and `versions` is a version policy; the operator's settings override both.
    `without_effect` names what is set and has no effect here.

    A language model is at `language_path`; `language_options` are fields of `EngineConfig`, which
    the operator's override too.

    Another model is `model`, or else found in the version directory: `model_file` is its name, ""
    for any; its format must be one of `formats`, if there are any.  `inputs` and `outputs` have
    shapes with the batch dimension.
    """

    server: str
    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: str = ""
    without_effect: tuple[str, ...] = ()
    model: DeclaredModel | None = None
    language_path: str = ""
    language_options: Mapping[str, Any] = field(default_factory=dict)
    model_file: str = ""
    formats: tuple[str, ...] = ()
    max_batch_size: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    model_options: Mapping[str, Any] = field(default_factory=dict)
    warm_up: tuple[WarmUpSample, ...] = ()
    controls: tuple[ControlInput, ...] = ()

    def declare(self, spec: DeclaredModel) -> DeclaredModel:
        """Return the model file `spec` with what its description adds.

        Raises StartError if the file has another format.
        """
        if self.formats and spec.format not in self.formats:
            raise StartError(
                f"{self.file}: the model is {' or '.join(self.formats)}, but '{spec.key}' is "
                f"{spec.format}"
            )
        return replace(
            spec,
            options={**spec.options, **self.model_options},
            max_batch_size=self.max_batch_size,
            inputs=self.inputs,
            outputs=self.outputs,
            warm_up=self.warm_up,
            controls=self.controls,
        )

    def note(self, name: str) -> str:
        """Return a line about servable `name` for the operator; "" if everything has an effect."""
        if not self.without_effect:
            return ""
        fields = ", ".join(map(_shown, self.without_effect))
        return f"{name}: without effect here, of {self.server}'s {self.file}: {fields}"


def _shown(text: str) -> str:
    """Return a name from a file as it may be printed: on one line, and not too long."""
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable if len(printable) <= _MAX_LENGTH else printable[:_MAX_LENGTH] + "…"
