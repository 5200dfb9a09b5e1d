"""The document against the tables and routes that it is made from."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.signature import InstanceSignature, ServableSignature, ValueSpec
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.mindspore import routes as mindspore
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest
from mindspore_serving.frontends.openapi import (
    DocumentOptions,
    OpenApiDocument,
    sections_of,
    values,
)
from mindspore_serving.frontends.openapi.document import Section, to_document
from mindspore_serving.frontends.openapi.methods import DescribedServable
from mindspore_serving.frontends.operation import Body, Operation
from mindspore_serving.frontends.protocols import ROUTES
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.shared_memory import SharedMemory

PLACES = {"version": "1", "servable": "toy"}
IMAGE = ValueSpec("image", "float32", (3, None))
SIGNATURE = InstanceSignature(
    (IMAGE, ValueSpec("k", "int32", (), True)), (ValueSpec("text", "str", ()),)
)


class _Control:
    has_language_models = True


class _Repository:
    is_allowed = True


def _v2() -> Any:
    state: Any = AppState(None, None, _Control(), 1, _Repository())  # type: ignore[arg-type]
    return V2(state, None, SharedMemory(is_enabled=True), ServerLimits())  # type: ignore[arg-type]


def served(
    name: str = "toy", *, versions: tuple[int, ...] = (1,), **methods: Any
) -> DescribedServable:
    signature = ServableSignature(name, versions[-1], versions, methods or {"predict": SIGNATURE})
    return DescribedServable(name, 0, signature, frozenset(), False)


def document(*found: DescribedServable) -> Any:
    sections = sections_of(OpenApiDocument(_v2(), DocumentOptions(), ROUTES), found, ("chatty",))
    return to_document(sections, has_keys=False, model="chatty")


def test_every_route_is_described_and_nothing_else() -> None:
    # Each method of the classic protocol is described, and not its paths.
    rows = [row for row in ROUTES if row.protocol not in (mindspore.PROTOCOL, mindspore.OTHER)]
    described = {
        (verb.upper(), path)
        for path, verbs in document()["paths"].items()
        for verb in verbs
        if not path.startswith("/model/")
    }
    assert {
        (row.verb, row.path.replace(":path}", "}")) for row in rows if row.verb != "HEAD"
    } == described


def test_an_example_is_for_a_model_that_is_served() -> None:
    body = document()["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["example"]["model"] == "chatty"


def test_every_sampling_parameter_is_a_field_with_its_range_and_meaning() -> None:
    schemas = document()["components"]["schemas"]
    for name, alias in ((row.name, row.aliases["v2"]) for row in SAMPLING.values()):
        fields = schemas["Open_Inference_Protocol_v2.GenerateFields"]["properties"]
        assert fields[alias]["description"] == SAMPLING[name].meaning
    top_p = schemas["OpenAI.ChatRequest"]["properties"]["top_p"]
    assert (top_p["exclusiveMinimum"], top_p["maximum"]) == (0, 1)


def test_refused_and_ignored_fields_are_said_to_be_so() -> None:
    fields = document()["components"]["schemas"]["OpenAI.ChatRequest"]["properties"]
    assert fields["functions"]["enum"] == [None, False, 0, "", [], {}]
    assert "use tools" in fields["functions"]["description"]
    assert fields["user"] == {"description": "ignored"}


def test_a_new_row_of_a_table_is_in_the_document() -> None:
    table = replace(CHAT, ignored=(*CHAT.ignored, "brand_new"))
    body = Body(OpenAIChatRequest, {OpenAIChatRequest: table})
    section = Section("New", "", {}, (Operation("POST", "/new", "", {}, body),))
    schemas = to_document([section], has_keys=False)["components"]["schemas"]
    fields = schemas["New.OpenAIChatRequest"]["properties"]
    assert fields["brand_new"] == {"description": "ignored"}
    assert fields["min_p"]["description"] == SAMPLING["min_p"].meaning


def test_protocols_may_have_types_of_the_same_name() -> None:
    schemas = document()["components"]["schemas"]
    assert set(schemas) >= {"OpenAI.ChatRequest", "TGI.ChatRequest", "llm-serving.Parameters"}


def test_names_of_servables_and_methods_are_encoded_in_paths() -> None:
    paths = document(served("a b", **{"x/{y}": SIGNATURE}))["paths"]
    assert "/model/a%20b:x%2F%7By%7D" in paths
    assert "/v2/models/a%20b/infer" in paths


def test_every_operation_has_a_name_of_its_own() -> None:
    paths = document(served("servable", method=SIGNATURE), served("a-b"), served("a_b"))["paths"]
    names = [one["operationId"] for verbs in paths.values() for one in verbs.values()]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_a_default_method_has_the_name_of_its_servable() -> None:
    paths = document(served(predict=SIGNATURE, other=SIGNATURE))["paths"]
    assert {"/v2/models/toy/infer", "/v2/models/toy.other/infer"} <= set(paths)
    assert "/v1/models/toy.other:predict" in paths


def test_the_example_of_a_tensor_has_its_shape() -> None:
    example = values.instance_example(SIGNATURE)
    assert example == {"image": [[1.0], [1.0], [1.0]]}
    tensors = values.tensors_example(SIGNATURE)
    assert tensors is not None
    (tensor,) = tensors["inputs"]
    assert (tensor["shape"], len(tensor["data"])) == ([1, 3, 1], 3)


def test_a_method_without_batch_dimension_says_so_and_has_whole_tensors() -> None:
    whole = InstanceSignature(SIGNATURE.inputs, SIGNATURE.outputs, is_batched=False)
    paths = document(served(predict=whole))["paths"]
    for path in ("/model/toy:predict", "/v2/models/toy/infer"):
        assert paths[path]["post"]["summary"].endswith(
            "toy, whole tensors without a batch dimension"
        )
    tensors = values.tensors_example(whole)
    assert tensors is not None
    assert tensors["inputs"][0]["shape"] == [3, 1]


def test_a_long_value_has_no_example() -> None:
    image = InstanceSignature((ValueSpec("image", "uint8", (224, 224, 3)),), ())
    assert values.instance_example(image) is None
    assert "example" not in json.dumps(
        document(served(predict=image))["paths"]["/model/toy:predict"]
    )


@pytest.mark.parametrize(
    ("dtype", "schema"),
    [
        ("bool", {"type": "boolean"}),
        ("uint8", {"type": "integer", "minimum": 0, "maximum": 255}),
        ("float64", {"type": ["number", "null"]}),
    ],
)
def test_integers_have_the_range_of_their_dtype(dtype: str, schema: Any) -> None:
    plain, _ = values.value_schema(ValueSpec("x", dtype, ()))["anyOf"]
    assert plain == schema


def test_texts_and_bytes_have_a_single_form() -> None:
    assert values.value_schema(ValueSpec("x", "str", ())) == {"type": "string"}
    assert values.value_schema(ValueSpec("x", "bytes", ()))["required"] == ["b64"]


def test_an_output_that_is_no_number_is_null() -> None:
    schema = values.value_schema(ValueSpec("y", "float32", ()), is_output=True)
    assert schema == {"type": ["number", "null"]}
