"""What each method takes and gives, in every protocol that calls methods."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mindspore_serving.core.signature import InstanceSignature, ServableSignature
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.mindspore.rest_stream import SUFFIX
from mindspore_serving.frontends.openapi import values
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    STRING,
    Body,
    Kind,
    Operation,
    Schema,
    to_array,
    to_object,
)
from mindspore_serving.frontends.v2 import schemas as v2
from mindspore_serving.frontends.v2.models import GENERATE, default_method

_ERROR = to_object({"error_msg": STRING})
_PATHS = "/model/{servable}:{method}", "/model/{servable}/version/{version}:{method}"


@dataclass(frozen=True, slots=True)
class Served:
    """A servable as it is called by its name and, with `version`, by that alone.  `streams` are
    the methods that may answer in pieces.
    """

    name: str
    version: int
    signature: ServableSignature
    streams: frozenset[str]
    is_language: bool


def look(state: AppState) -> tuple[Served, ...]:
    """What is served now; each version by itself where there are several."""
    control = state.control
    language = {name for name, _, card in control.language_models() if card.can_generate}
    found = []
    for name in dict.fromkeys(one.name for one in control.readiness()):
        newest = control.signature(name)
        versions = newest.versions if newest is not None and len(newest.versions) > 1 else ()
        for version in (0, *versions):
            signature = control.signature(name, version)
            if signature is None:
                continue
            streams = frozenset(
                method
                for method in signature.methods
                if control.streams(name, signature.version, method)
            )
            found.append(Served(name, version, signature, streams, name in language))
    return tuple(found)


def classic_methods(served: tuple[Served, ...], *, has_codes: bool) -> Iterator[Operation]:
    """Without `has_codes` errors have status 200."""
    answers = _classic_answers({"type": "object"}, has_codes=has_codes)
    body = Body(to_object({"instances": {"type": ["array", "object"]}}))
    for one in served:
        for method, signature in one.signature.methods.items():
            yield from _classic_methods(one, method, signature, has_codes=has_codes)
    for path in _PATHS:
        yield Operation("POST", path, "Call a method", answers, body)


def _classic_methods(
    served: Served, method: str, signature: InstanceSignature, *, has_codes: bool
) -> Iterator[Operation]:
    place = f"/version/{served.version}" if served.version else ""
    path = f"/model/{quote(served.name, '')}{place}:{quote(method, '')}"
    instance = values.instance_example(signature)
    example = None if instance is None else {"instances": [instance]}
    inputs = values.instance_schema(signature.inputs)
    instances: Schema = {"anyOf": [to_array(inputs, at_least=1), inputs]}
    body = Body(to_object({"instances": instances}), example=example)
    answers = _classic_answers(
        values.instance_schema(signature.outputs, is_output=True), has_codes=has_codes
    )
    text = f"{method} of {served.name}"
    yield Operation("POST", path, text, answers, body)
    if method in served.streams:
        answers = {EVENTS: EVENT, **({} if has_codes else answers)}
        yield Operation("POST", path + SUFFIX, f"{text}, as events", answers, body)


def _classic_answers(outputs: Schema, *, has_codes: bool) -> dict[str, Kind]:
    answer = to_object({"instances": to_array({"anyOf": [outputs, _ERROR]})})
    return {JSON: answer if has_codes else (answer, _ERROR)}


def v1_methods(served: tuple[Served, ...]) -> Iterator[Operation]:
    """Of KServe's protocol v1, which has no versions."""
    for one in served:
        if one.version or one.is_language:
            continue
        for name, signature in _models(one):
            yield _v1(name, signature)


def _v1(name: str, signature: InstanceSignature) -> Operation:
    instance = values.instance_example(signature)
    body = to_object({"instances": to_array(_v1_value(signature, is_output=False), at_least=1)})
    answer = to_object({"predictions": to_array(_v1_value(signature, is_output=True))})
    example = None if instance is None else {"instances": [instance]}
    path = f"/v1/models/{quote(name, '')}:predict"
    return Operation("POST", path, f"Call {name}", {JSON: answer}, Body(body, example=example))


def _v1_value(signature: InstanceSignature, *, is_output: bool) -> dict[str, Any]:
    """An object with the inputs or outputs; of one alone, its value."""
    specs = signature.outputs if is_output else signature.inputs
    needed = [spec for spec in specs if not spec.is_optional]
    whole = values.instance_schema(specs, is_output=is_output)
    if len(needed) != 1:
        return whole
    value = values.value_schema(needed[0], is_output=is_output)
    return value if is_output else {"anyOf": [whole, value]}


def v2_methods(served: tuple[Served, ...]) -> Iterator[Operation]:
    for one in served:
        place = f"/versions/{one.version}" if one.version else ""
        for name, signature in _models(one):
            yield _infer(f"/v2/models/{quote(name, '')}{place}", name, signature)
        if one.is_language:
            base = f"/v2/models/{quote(one.name, '')}{place}"
            yield from _generate(base, one.name)


def _infer(base: str, name: str, signature: InstanceSignature) -> Operation:
    outputs = values.tensors_schema(signature.outputs)
    outputs.pop("minItems", None)  # a request may name those that it wants
    answers = {JSON: v2.infer_answer(outputs), v2.BINARY: {}}
    request = v2.infer_request(values.tensors_schema(signature.inputs))
    body = Body(request, example=values.tensors_example(signature))
    return Operation("POST", f"{base}/infer", f"Call {name}", answers, body)


def _generate(base: str, name: str) -> Iterator[Operation]:
    body = v2.generate_body({"text_input": "Hello", "max_tokens": 8})
    for path, is_stream in (("generate", False), ("generate_stream", True)):
        text = f"Continue a text with {name}" + (", as events" if is_stream else "")
        answers = v2.generate_answers(is_stream=is_stream)
        yield Operation("POST", f"{base}/{path}", text, answers, body)


def _models(served: Served) -> Iterator[tuple[str, InstanceSignature]]:
    """The names that protocol v2 has for the methods."""
    if served.is_language:
        yield served.name, GENERATE
    default = None if served.is_language else default_method(served.signature)
    for method, signature in served.signature.methods.items():
        yield (served.name if method == default else f"{served.name}.{method}"), signature
