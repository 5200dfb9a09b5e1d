"""Servables as models of protocol v2, found by name.

A model is a servable's default method: its only one, else `predict`; a language model is one by
itself.  Other methods are models called NAME.METHOD.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.core.signature import InstanceSignature, ServableSignature, ValueSpec
from mindspore_serving.errors import InvalidInputs, NotFound, ServableUnavailable
from mindspore_serving.frontends.chat.models import LanguageModels, ServedModel
from mindspore_serving.frontends.health import of_servable

DEFAULT = "predict"
TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
_ONE = (1,)  # a language model takes one prompt, and no dimension counts instances
GENERATE = InstanceSignature(
    (
        ValueSpec(TEXT_INPUT, "str", _ONE),
        ValueSpec("stream", "bool", _ONE, is_optional=True),
        ValueSpec("sampling_parameters", "str", _ONE, is_optional=True),
        ValueSpec("exclude_input_in_output", "bool", _ONE, is_optional=True),
    ),
    (ValueSpec(TEXT_OUTPUT, "str", (None,)),),
)


@dataclass(frozen=True, slots=True)
class V2Model:
    """A method under the `name` that the client gave, in the `version` that runs it; or, with
    `language`, a language model.
    """

    name: str
    servable: str
    version: int
    method: str
    signature: InstanceSignature
    versions: tuple[int, ...]
    streams: bool = False
    language: ServedModel | None = None


class V2Models:
    """What is served now, by the names of protocol v2.  Used on the event loop's thread."""

    def __init__(self, control: Control, language: LanguageModels) -> None:
        self._control = control
        self._language = language

    @property
    def limits(self) -> LanguageLimits:
        """Of what requests to language models hold."""
        return self._language.limits

    def find(self, name: str, version: int = 0) -> V2Model:
        """Raises NotFound, or ServableUnavailable while it loads."""
        servable, method = name, ""
        found = self._control.signature(name, version)
        if found is None and "." in name:
            servable, _, method = name.rpartition(".")
            found = self._control.signature(servable, version)
        if found is None:
            raise self._missing(name, version)
        if not method:
            language = self._language_model(found)
            if language is not None:
                return V2Model(
                    name,
                    servable,
                    found.version,
                    "",
                    GENERATE,
                    found.versions,
                    streams=True,
                    language=language,
                )
            method = _default_of(found)
        if method not in found.methods:
            raise _unknown(name)
        streams = self._control.streams(servable, found.version, method) is True
        signature = found.methods[method]
        versions = found.versions
        return V2Model(name, servable, found.version, method, signature, versions, streams)

    def is_other(self, name: str) -> bool:
        """Whether there is such a servable, and no language model has the name."""
        if any(model.name == name for model in self._language.all()):
            return False
        return bool(of_servable(self._control, name))

    def is_ready(self, name: str, version: int = 0) -> bool:
        """Whether it takes requests.  Raises NotFound if there is no such model."""
        states = self._states_of(name, version)
        return any(one.is_ready for one in states)

    def names(self) -> list[str]:
        """Of all models that are deployed, each once."""
        found = [
            name
            for one in self._control.readiness()
            for name in self.names_of(one.name, one.version)
        ]
        return list(dict.fromkeys(found))

    def names_of(self, servable: str, version: int) -> Iterator[str]:
        """The models of a servable version: itself, and its methods but for the default."""
        yield servable
        found = self._control.signature(servable, version)
        if found is None:
            return
        default = None if self._language_model(found) else default_method(found)
        for method in found.methods:
            if method != default:
                yield f"{servable}.{method}"

    def loaded(self, name: str = "", version: int = 0) -> list[V2Model]:
        """One model, or all that are loaded.  Raises NotFound."""
        if name:
            return [self.find(name, version)]
        return [
            self.find(name, one.version)
            for one in self._control.readiness()
            if one.is_ready
            for name in self.names_of(one.name, one.version)
            if self._is_callable(name, one)
        ]

    def _language_model(self, found: ServableSignature) -> ServedModel | None:
        for model in self._language.all():
            if model.name == found.name and model.card.can_generate:
                return model
        return None

    def _is_callable(self, name: str, one: ServableReadiness) -> bool:
        """Whether `name` is a method, not a servable that has several and no default."""
        found = self._control.signature(name, one.version)
        if found is None or self._language_model(found):
            return True
        return default_method(found) is not None

    def _states_of(self, name: str, version: int) -> Sequence[ServableReadiness]:
        servable = name
        if not of_servable(self._control, name) and "." in name:
            servable = self.find(name, version).servable
        found = of_servable(self._control, servable)
        states = [one for one in found if not version or one.version == version]
        if not states:
            raise self._missing(name, version)
        return states

    def _missing(self, name: str, version: int) -> NotFound | ServableUnavailable:
        for servable in (name, name.rpartition(".")[0]):
            for one in of_servable(self._control, servable):
                if not one.is_ready and version in (0, one.version):
                    return ServableUnavailable(f"model '{name}' is not ready: {one.reason}")
                if version:
                    return NotFound(
                        f"Request for unknown model: '{name[:256]}' version {version} is not found"
                    )
        return _unknown(name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"Request for unknown model: '{name[:256]}' is not found")


def default_method(found: ServableSignature) -> str | None:
    """The method that a servable's own name calls."""
    if len(found.methods) == 1:
        return next(iter(found.methods))
    return DEFAULT if DEFAULT in found.methods else None


def _default_of(found: ServableSignature) -> str:
    method = default_method(found)
    if method is None:
        names = ", ".join(f"{found.name}.{name}" for name in found.methods) or "none"
        raise InvalidInputs(
            f"servable '{found.name}' has several methods and none is '{DEFAULT}'; its models "
            f"are: {names}"
        )
    return method
