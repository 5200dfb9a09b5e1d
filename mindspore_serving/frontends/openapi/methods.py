"""Operations that call the methods of servables, in the classic protocol, v1 and v2."""

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
_WHOLE = ", whole tensors without a batch dimension"
_PATHS = "/model/{servable}:{method}", "/model/{servable}/version/{version}:{method}"


@dataclass(frozen=True, slots=True)
class DescribedServable:
    """A servable, or a version of it; `streams` are its methods that can stream answers."""

    name: str
    version: int
    signature: ServableSignature
    streams: frozenset[str]
    is_language: bool


def list_servables(state: AppState) -> tuple[DescribedServable, ...]:
    """Return the deployed servables: the newest version as 0, and each of several versions."""
    control = state.control
    language = {name for name, _, card in control.language_models() if card.can_generate}
    servables = []
    for name in dict.fromkeys(version.name for version in control.readiness()):
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
            servables.append(DescribedServable(name, version, signature, streams, name in language))
    return tuple(servables)


def classic_methods(
    served: tuple[DescribedServable, ...], *, has_codes: bool
) -> Iterator[Operation]:
    """Iterate over the classic protocol's operations; errors are 200 without `has_codes`."""
    answers = _classic_answers({"type": "object"}, has_codes=has_codes)
    body = Body(to_object({"instances": {"type": ["array", "object"]}}))
    for servable in served:
        for method, signature in servable.signature.methods.items():
            yield from _classic_methods(servable, method, signature, has_codes=has_codes)
    for path in _PATHS:
        yield Operation("POST", path, "Call a method", answers, body)


def _classic_methods(
    served: DescribedServable, method: str, signature: InstanceSignature, *, has_codes: bool
) -> Iterator[Operation]:
    version = f"/version/{served.version}" if served.version else ""
    path = f"/model/{quote(served.name, '')}{version}:{quote(method, '')}"
    instance = values.instance_example(signature)
    example = None if instance is None else {"instances": [instance]}
    inputs = values.instance_schema(signature.inputs)
    instances: Schema = {"anyOf": [to_array(inputs, at_least=1), inputs]}
    body = Body(to_object({"instances": instances}), example=example)
    answers = _classic_answers(
        values.instance_schema(signature.outputs, is_output=True), has_codes=has_codes
    )
    text = f"{method} of {served.name}{'' if signature.is_batched else _WHOLE}"
    yield Operation("POST", path, text, answers, body)
    if method in served.streams:
        answers = {EVENTS: EVENT, **({} if has_codes else answers)}
        yield Operation("POST", path + SUFFIX, f"{text}, as events", answers, body)


def _classic_answers(outputs: Schema, *, has_codes: bool) -> dict[str, Kind]:
    answer = to_object({"instances": to_array({"anyOf": [outputs, _ERROR]})})
    return {JSON: answer if has_codes else (answer, _ERROR)}


def v1_methods(served: tuple[DescribedServable, ...]) -> Iterator[Operation]:
    """Iterate over operations of KServe's protocol v1, which has no versions."""
    for servable in served:
        if servable.version or servable.is_language:
            continue
        for name, signature in _models(servable):
            yield _v1(name, signature)


def _v1(name: str, signature: InstanceSignature) -> Operation:
    instance = values.instance_example(signature)
    body = to_object({"instances": to_array(_v1_value(signature, is_output=False), at_least=1)})
    answer = to_object({"predictions": to_array(_v1_value(signature, is_output=True))})
    example = None if instance is None else {"instances": [instance]}
    path = f"/v1/models/{quote(name, '')}:predict"
    return Operation("POST", path, f"Call {name}", {JSON: answer}, Body(body, example=example))


def _v1_value(signature: InstanceSignature, *, is_output: bool) -> dict[str, Any]:
    """Return the schema of an instance: an object, or the value of a single input or output."""
    specs = signature.outputs if is_output else signature.inputs
    needed = [spec for spec in specs if not spec.is_optional]
    instance = values.instance_schema(specs, is_output=is_output)
    if len(needed) != 1:
        return instance
    value = values.value_schema(needed[0], is_output=is_output)
    return value if is_output else {"anyOf": [instance, value]}


def v2_methods(served: tuple[DescribedServable, ...]) -> Iterator[Operation]:
    """Iterate over operations of protocol v2."""
    for servable in served:
        version = f"/versions/{servable.version}" if servable.version else ""
        for name, signature in _models(servable):
            yield _infer(f"/v2/models/{quote(name, '')}{version}", name, signature)
        if servable.is_language:
            base = f"/v2/models/{quote(servable.name, '')}{version}"
            yield from _generate(base, servable.name)


def _infer(base: str, name: str, signature: InstanceSignature) -> Operation:
    outputs = values.tensors_schema(signature.outputs)
    outputs.pop("minItems", None)  # a request can select outputs
    answers = {JSON: v2.infer_answer(outputs), v2.BINARY: {}}
    request = v2.infer_request(values.tensors_schema(signature.inputs))
    body = Body(request, example=values.tensors_example(signature))
    text = f"Call {name}{'' if signature.is_batched else _WHOLE}"
    return Operation("POST", f"{base}/infer", text, answers, body)


def _generate(base: str, name: str) -> Iterator[Operation]:
    body = v2.generate_body({"text_input": "Hello", "max_tokens": 8})
    for path, is_stream in (("generate", False), ("generate_stream", True)):
        text = f"Continue a text with {name}" + (", as events" if is_stream else "")
        answers = v2.generate_answers(is_stream=is_stream)
        yield Operation("POST", f"{base}/{path}", text, answers, body)


def _models(served: DescribedServable) -> Iterator[tuple[str, InstanceSignature]]:
    """Iterate over the models of a servable by their names in protocol v2."""
    if served.is_language:
        yield served.name, GENERATE
    default = None if served.is_language else default_method(served.signature)
    for method, signature in served.signature.methods.items():
        yield (served.name if method == default else f"{served.name}.{method}"), signature
