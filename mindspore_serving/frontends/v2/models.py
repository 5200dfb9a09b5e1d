"""Servables as models of protocol v2, found by name.

The model NAME is the default method of the servable NAME, its only one or `predict`, or a language
model.  Other methods are models called NAME.METHOD.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.core.signature import InstanceSignature, ServableSignature, ValueSpec
from mindspore_serving.errors import InvalidInputs, NotFound, ServableUnavailable, did_you_mean
from mindspore_serving.frontends.chat.models import LanguageModels, ServedModel
from mindspore_serving.frontends.health import versions_of

DEFAULT = "predict"
TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
_SCALAR = (1,)  # a language model takes one prompt, and no dimension counts instances
GENERATE = InstanceSignature(
    (
        ValueSpec(TEXT_INPUT, "str", _SCALAR),
        ValueSpec("stream", "bool", _SCALAR, is_optional=True),
        ValueSpec("sampling_parameters", "str", _SCALAR, is_optional=True),
        ValueSpec("exclude_input_in_output", "bool", _SCALAR, is_optional=True),
    ),
    (ValueSpec(TEXT_OUTPUT, "str", (None,)),),
)


@dataclass(frozen=True, slots=True)
class V2Model:
    """A method by the name in a request, or a `language` model.

    `version` is the one that is described: the newest, unless another is `requested`.
    """

    name: str
    servable: str
    version: int
    method: str
    signature: InstanceSignature
    versions: tuple[int, ...]
    streams: bool = False
    requested: int = 0  # version that the client names; 0 if it names none
    language: ServedModel | None = None


class V2Models:
    """The deployed models by their names in protocol v2.  Used on the event loop's thread."""

    def __init__(self, control: Control, language: LanguageModels) -> None:
        self._control = control
        self._language = language

    @property
    def limits(self) -> LanguageLimits:
        """Limits of requests to language models."""
        return self._language.limits

    def find(self, name: str, version: int = 0) -> V2Model:
        """Return a model; version 0 is the newest.

        Raises NotFound, or ServableUnavailable while the model loads.
        """
        servable, method = name, ""
        signature = self._control.signature(name, version)
        if signature is None and "." in name:
            servable, _, method = name.rpartition(".")
            signature = self._control.signature(servable, version)
        if signature is None:
            raise self._missing(name, version)
        if not method:
            language = self._language_model(signature)
            if language is not None:
                return V2Model(
                    name,
                    servable,
                    signature.version,
                    "",
                    GENERATE,
                    signature.versions,
                    streams=True,
                    requested=version,
                    language=replace(language, requested=version),
                )
            method = _default_of(signature)
        if method not in signature.methods:
            raise _unknown(name, self.names())
        return V2Model(
            name,
            servable,
            signature.version,
            method,
            signature.methods[method],
            signature.versions,
            streams=self._control.streams(servable, signature.version, method) is True,
            requested=version,
        )

    def is_plain(self, name: str) -> bool:
        """Return whether `name` is a servable and not a language model."""
        if any(model.name == name for model in self._language.all()):
            return False
        return bool(versions_of(self._control, name))

    def is_ready(self, name: str, version: int = 0) -> bool:
        """Return whether a model is ready.  Raises NotFound if it does not exist."""
        states = self._states_of(name, version)
        return any(state.is_ready for state in states)

    def names(self) -> list[str]:
        """Return the names of all deployed models, without duplicates."""
        names = [
            name
            for state in self._control.readiness()
            for name in self.names_of(state.name, state.version)
        ]
        return list(dict.fromkeys(names))

    def names_of(self, servable: str, version: int) -> Iterator[str]:
        """Iterate over the models of a servable version: NAME, and NAME.METHOD of other methods."""
        yield servable
        signature = self._control.signature(servable, version)
        if signature is None:
            return
        default = None if self._language_model(signature) else default_method(signature)
        for method in signature.methods:
            if method != default:
                yield f"{servable}.{method}"

    def loaded(self, name: str = "", version: int = 0) -> list[V2Model]:
        """Return one model, or all loaded models.  Raises NotFound."""
        if name:
            return [self.find(name, version)]
        return [
            self.find(name, state.version)
            for state in self._control.readiness()
            if state.is_ready
            for name in self.names_of(state.name, state.version)
            if self._is_callable(name, state)
        ]

    def _language_model(self, signature: ServableSignature) -> ServedModel | None:
        for model in self._language.all():
            if model.name == signature.name and model.card.can_generate:
                return model
        return None

    def _is_callable(self, name: str, state: ServableReadiness) -> bool:
        """Return whether `name` is a method, or a servable with a default method."""
        signature = self._control.signature(name, state.version)
        if signature is None or self._language_model(signature):
            return True
        return default_method(signature) is not None

    def _states_of(self, name: str, version: int) -> Sequence[ServableReadiness]:
        servable = name
        if not versions_of(self._control, name) and "." in name:
            servable = self.find(name, version).servable
        versions = versions_of(self._control, servable)
        states = [state for state in versions if version in (0, state.version)]
        if not states:
            raise self._missing(name, version)
        return states

    def _missing(self, name: str, version: int) -> NotFound | ServableUnavailable:
        for servable in (name, name.rpartition(".")[0]):
            for state in versions_of(self._control, servable):
                if not state.is_ready and version in (0, state.version):
                    return ServableUnavailable(f"model '{name}' is not ready: {state.reason}")
                if version:
                    return NotFound(
                        f"Request for unknown model: '{name[:256]}' version {version} is not found"
                    )
        return _unknown(name, self.names())


def _unknown(name: str, known: Iterable[str] = ()) -> NotFound:
    near = did_you_mean(name, known)
    return NotFound(f"Request for unknown model: '{name[:256]}' is not found{near}")


def default_method(signature: ServableSignature) -> str | None:
    """Return the method that the name of a servable calls, None if it has no default."""
    if len(signature.methods) == 1:
        return next(iter(signature.methods))
    return DEFAULT if DEFAULT in signature.methods else None


def _default_of(signature: ServableSignature) -> str:
    method = default_method(signature)
    if method is None:
        names = ", ".join(f"{signature.name}.{name}" for name in signature.methods) or "none"
        raise InvalidInputs(
            f"servable '{signature.name}' has several methods and none is '{DEFAULT}'; its models "
            f"are: {names}"
        )
    return method
