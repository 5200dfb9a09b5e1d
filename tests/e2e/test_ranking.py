"""An embedder, a reranker and a classifier behind a real server, asked by Cohere's, Hugging Face's
and OpenAI's own clients; compared with transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers

from tests.e2e.harness import Calls, config, serving
from tests.llm.encoders import describe_modules
from tests.tasks import checkpoints
from tests.waiting import PATIENCE

cohere = pytest.importorskip("cohere")
huggingface_hub = pytest.importorskip("huggingface_hub")

QUERY = "A quick brown film"
TEXTS = checkpoints.TEXTS
LABELS = ["negative", "neutral", "positive"]
PROMPTS = {"query": "quick: ", "document": ""}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("readers")
    head = "ForSequenceClassification"
    checkpoints.build(place / "embedder", "bert", "Model")
    describe_modules(place / "embedder", {"pooling_mode_mean_tokens": True}, normalizes=True)
    described = {"prompts": PROMPTS, "default_prompt_name": None}
    (place / "embedder" / "config_sentence_transformers.json").write_text(json.dumps(described))
    path = place / "embedder" / "config.json"
    sizes = {"matryoshka_dimensions": [8, 24]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **sizes}))
    checkpoints.build(place / "reranker", "xlm-roberta", head, labels=["fits"])
    checkpoints.build(place / "sentiment", "bert", head, labels=LABELS)
    return place


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    names = ("embedder", "reranker", "sentiment")
    with serving(place, *(config(place, name) for name in names)) as found:
        yield found


@pytest.fixture(scope="module")
def url(calls: Calls) -> str:
    return f"http://127.0.0.1:{calls.http}"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """The connections of clients that do not close their own."""
    with httpx.Client(timeout=PATIENCE) as found:
        yield found


@pytest.fixture
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    base = f"{url}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


@pytest.fixture(scope="module")
def cohere_client(url: str, http: httpx.Client) -> Any:
    return cohere.ClientV2("none", base_url=url, timeout=PATIENCE, httpx_client=http)


def post(url: str, path: str, **body: Any) -> tuple[int, Any]:
    answer = httpx.post(url + path, json=body, timeout=PATIENCE)
    return answer.status_code, answer.json()


@pytest.fixture(scope="module")
def logits(place: Path) -> Any:
    """Of a model's directory: what transformers computes for a text, or for a pair."""
    opened: dict[str, Any] = {}

    @torch.inference_mode()
    def compute(name: str, *texts: str) -> np.ndarray:
        if name not in opened:
            kind = transformers.AutoModelForSequenceClassification
            opened[name] = (
                transformers.AutoTokenizer.from_pretrained(place / name),
                kind.from_pretrained(place / name).eval(),
            )
        tokenizer, model = opened[name]
        inputs = tokenizer(*texts, truncation=True, return_tensors="pt")
        return model(**inputs).logits[0].numpy()

    return compute


@pytest.fixture(scope="module")
def fits(logits: Any) -> np.ndarray:
    """How well each of TEXTS answers QUERY: what the reranker is to say."""
    found = np.array([logits("reranker", QUERY, text)[0] for text in TEXTS])
    return 1 / (1 + np.exp(-found))


@pytest.fixture(scope="module")
def vectors(place: Path) -> Any:
    """Of texts: the mean of their tokens by transformers, as it comes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "embedder")
    model = transformers.AutoModel.from_pretrained(place / "embedder").eval()

    @torch.inference_mode()
    def compute(texts: list[str]) -> np.ndarray:
        rows = [tokenizer(text, return_tensors="pt", truncation=True) for text in texts]
        return np.stack([model(**row).last_hidden_state[0].mean(0).numpy() for row in rows])

    return compute


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def check_order(results: list[Any], fits: np.ndarray) -> None:
    assert [one.index for one in results] == np.argsort(-fits, kind="stable").tolist()
    found = [one.relevance_score for one in results]
    assert found == pytest.approx(np.sort(fits)[::-1], abs=1e-4)


# --- Cohere's form ------------------------------------------------------------------------------


def test_coheres_second_client_ranks_documents(cohere_client: Any, fits: np.ndarray) -> None:
    client = cohere_client
    found = client.rerank(model="reranker", query=QUERY, documents=TEXTS)
    check_order(found.results, fits)
    assert found.meta.api_version.version == "2"
    best = client.rerank(model="reranker", query=QUERY, documents=TEXTS, top_n=2)
    check_order([*best.results, *found.results[2:]], fits)
    assert len(best.results) == 2


def test_coheres_first_client_gets_texts_too(
    url: str, http: httpx.Client, fits: np.ndarray
) -> None:
    client = cohere.Client("none", base_url=url, timeout=PATIENCE, httpx_client=http)
    found = client.rerank(model="reranker", query=QUERY, documents=TEXTS, return_documents=True)
    check_order(found.results, fits)
    assert [one.document.text for one in found.results] == [TEXTS[r.index] for r in found.results]


def test_a_wrong_ranking_is_refused_with_a_message(cohere_client: Any) -> None:
    client = cohere_client
    with pytest.raises(cohere.NotFoundError) as missing:
        client.rerank(model="nothing", query=QUERY, documents=TEXTS)
    assert "reranker" in missing.value.body["message"]
    with pytest.raises(cohere.BadRequestError) as wrong:
        client.rerank(model="embedder", query=QUERY, documents=TEXTS)
    assert "nor a reranker" in wrong.value.body["message"]
    with pytest.raises(cohere.BadRequestError) as several:
        client.rerank(model="sentiment", query=QUERY, documents=TEXTS)
    assert "3 labels" in several.value.body["message"]
    with pytest.raises(cohere.BadRequestError) as empty:
        client.rerank(model="reranker", query=QUERY, documents=[])
    assert "documents" in empty.value.body["message"]


def test_jina_and_vllm_read_documents_and_usage(url: str, fits: np.ndarray) -> None:
    documents = [{"text": text} for text in TEXTS]
    for path in ("/v1/rerank", "/rerank"):
        status, found = post(url, path, query=QUERY, documents=documents)
        assert status == 200
        best = found["results"][0]
        assert best["document"] == {"text": TEXTS[int(fits.argmax())]}
        assert found["model"] == "reranker"
        assert found["usage"]["total_tokens"] > 5 * len(TEXTS)


def test_long_documents_are_cut_unless_that_is_refused(url: str, logits: Any) -> None:
    long = "quick " * 300
    status, found = post(url, "/v1/rerank", query=QUERY, documents=[long])
    wanted = 1 / (1 + np.exp(-logits("reranker", QUERY, long)[0]))
    assert found["results"][0]["relevance_score"] == pytest.approx(wanted, abs=1e-4)
    status, found = post(url, "/v1/rerank", query=QUERY, documents=[long], truncation=False)
    assert status == 400
    assert "tokens" in found["message"]


def test_too_many_documents_or_characters_are_refused_before_work(url: str) -> None:
    status, found = post(url, "/v2/rerank", query=QUERY, documents=["x"] * 2049)
    assert status == 400
    assert "2048" in found["message"]
    status, found = post(url, "/v2/rerank", query="x" * 9000, documents=["x"] * 2000)
    assert status == 400
    assert "characters" in found["message"]


# --- vLLM's form --------------------------------------------------------------------------------


def test_scores_come_in_the_order_of_the_texts(url: str, fits: np.ndarray) -> None:
    for path in ("/v1/score", "/score"):
        status, found = post(url, path, model="reranker", text_1=QUERY, text_2=TEXTS)
        assert status == 200
        assert [one["score"] for one in found["data"]] == pytest.approx(fits, abs=1e-4)
    status, each = post(url, "/score", text_1=[QUERY] * len(TEXTS), text_2=TEXTS)
    assert [one["score"] for one in each["data"]] == pytest.approx(fits, abs=1e-4)


def test_scores_are_refused_in_openais_form(url: str) -> None:
    status, found = post(url, "/v1/score", text_1=[QUERY, QUERY], text_2=TEXTS)
    assert (status, found["error"]["param"]) == (400, "text_1")
    status, found = post(url, "/score", text_1=QUERY, text_2="quick " * 300)
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
    cut = {"truncate_prompt_tokens": -1}
    status, _ = post(url, "/score", text_1=QUERY, text_2="quick " * 300, **cut)
    assert status == 200


def test_texts_are_classified(url: str, logits: Any) -> None:
    status, found = post(url, "/classify", model="sentiment", input=TEXTS)
    assert status == 200
    for text, one in zip(TEXTS, found["data"], strict=True):
        powers = np.exp(logits("sentiment", text))
        assert one["probs"] == pytest.approx(powers / powers.sum(), abs=1e-4)
        assert one["label"] == LABELS[int(powers.argmax())]


# --- Hugging Face's form ------------------------------------------------------------------------


def test_hugging_faces_client_embeds(url: str, vectors: Any) -> None:
    client = huggingface_hub.InferenceClient(model=f"{url}/embed", timeout=PATIENCE)
    found = client.feature_extraction(TEXTS[0])
    assert np.abs(found - unit(vectors(TEXTS[:1]))).max() < 1e-4
    plain = client.feature_extraction(TEXTS[0], normalize=False)
    assert np.abs(plain - vectors(TEXTS[:1])).max() < 1e-4
    asked = client.feature_extraction(TEXTS[0], prompt_name="query", truncate=True)
    assert np.abs(asked - unit(vectors([PROMPTS["query"] + TEXTS[0]]))).max() < 1e-4


def test_the_root_answers_by_the_body(url: str, vectors: Any) -> None:
    client = huggingface_hub.InferenceClient(model=url, timeout=PATIENCE)
    found = client.feature_extraction(TEXTS[1])
    assert np.abs(found - unit(vectors(TEXTS[1:2]))).max() < 1e-4
    status, ranks = post(url, "/", query=QUERY, texts=TEXTS)
    assert len(ranks) == len(TEXTS)
    status, labels = post(url, "/", inputs=TEXTS[0], model="sentiment")
    assert {one["label"] for one in labels} == set(LABELS)


def test_hugging_faces_client_compares_sentences(url: str, vectors: Any) -> None:
    client = huggingface_hub.InferenceClient(model=f"{url}/similarity", timeout=PATIENCE)
    found = client.sentence_similarity(TEXTS[0], TEXTS[1:])
    rows = unit(vectors(TEXTS))
    assert found == pytest.approx(rows[1:] @ rows[0], abs=1e-4)


def test_hugging_faces_client_classifies(url: str, logits: Any) -> None:
    client = huggingface_hub.InferenceClient(model=f"{url}/predict", timeout=PATIENCE)
    found = client.text_classification(TEXTS[1])
    wanted = logits("sentiment", TEXTS[1])
    powers = np.exp(wanted) / np.exp(wanted).sum()
    assert [one.label for one in found] == [LABELS[i] for i in np.argsort(-wanted)]
    assert [one.score for one in found] == pytest.approx(np.sort(powers)[::-1], abs=1e-4)
    raw = client.text_classification(TEXTS[1], top_k=1, function_to_apply="none")
    assert [one.score for one in raw] == pytest.approx([wanted.max()], abs=1e-4)


def test_predictions_of_pairs_and_lists(url: str, logits: Any) -> None:
    pair = [TEXTS[0], TEXTS[1]]
    status, one = post(url, "/predict", model="sentiment", inputs=pair, raw_scores=True)
    wanted = logits("sentiment", *pair)
    assert [row["label"] for row in one] == [LABELS[i] for i in np.argsort(-wanted)]
    assert [row["score"] for row in one] == pytest.approx(np.sort(wanted)[::-1], abs=1e-4)
    status, several = post(url, "/predict", model="sentiment", inputs=[pair, pair], raw_scores=True)
    for row in several:
        assert [each["label"] for each in row] == [each["label"] for each in one]
        found = [each["score"] for each in row]
        assert found == pytest.approx([each["score"] for each in one], abs=1e-4)
    assert len(several) == 2
    status, found = post(url, "/predict", model="sentiment", inputs=["a", "b", "c"])
    assert (status, found["error_type"]) == (413, "Validation")


def test_tei_ranks_texts_on_coheres_path(url: str, fits: np.ndarray) -> None:
    status, found = post(url, "/rerank", query=QUERY, texts=TEXTS, return_text=True)
    order = np.argsort(-fits, kind="stable").tolist()
    assert [(one["index"], one["text"]) for one in found] == [(i, TEXTS[i]) for i in order]
    assert [one["score"] for one in found] == pytest.approx(np.sort(fits)[::-1], abs=1e-4)
    status, raw = post(url, "/rerank", query=QUERY, texts=TEXTS, raw_scores=True)
    assert [one["index"] for one in raw] == order
    assert "text" not in raw[0]


def test_tei_names_tokens_and_the_model(url: str) -> None:
    status, found = post(url, "/tokenize", inputs="A film", model="reranker")
    assert (found[0][0]["special"], found[0][0]["start"]) == (True, None)
    texts = [one["text"].strip() for one in found[0] if not one["special"]]
    assert "".join(texts) == "Afilm"
    info = httpx.get(f"{url}/info", timeout=PATIENCE).json()
    assert (info["model_id"], info["model_type"]) == (
        "embedder",
        {"embedding": {"pooling": "mean"}},
    )
    assert info["max_client_batch_size"] == 2048
    status, other = post(url, "/tokenize", prompt="A film", model="reranker")
    assert other["count"] == len(found[0])


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": "x", "model": "reranker"}, 424, "Backend"),
        ("/embed", {"inputs": "x", "prompt_name": "poem"}, 413, "Validation"),
        ("/embed", {"inputs": "quick " * 300}, 413, "Validation"),
        ("/embed", {"inputs": "x", "dimensions": 9}, 413, "Validation"),
        ("/embed_sparse", {"inputs": "x"}, 424, "Backend"),
        ("/predict", {"inputs": "x", "model": "embedder"}, 424, "Backend"),
        ("/rerank", {"query": "x", "texts": ["y"], "model": "sentiment"}, 424, "Backend"),
        ("/rerank", {"query": "x", "texts": []}, 413, "Validation"),
    ],
)
def test_tei_refuses_in_its_form(
    url: str, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    found, answer = post(url, path, **body)
    assert (found, answer["error_type"]) == (status, kind)
    assert answer["error"]


def test_a_body_that_is_none_is_refused_in_plain_text(url: str) -> None:
    answer = httpx.post(f"{url}/embed", json={"inputs": 5}, timeout=PATIENCE)
    assert answer.status_code == 422
    assert "inputs" in answer.text


# --- OpenAI's form ------------------------------------------------------------------------------


def test_openais_client_gets_the_dimensions_that_the_model_has(
    openai_client: openai.OpenAI, vectors: Any
) -> None:
    client = openai_client
    found = client.embeddings.create(model="embedder", input=TEXTS, dimensions=24)
    rows = np.array([one.embedding for one in found.data])
    assert np.abs(rows - unit(vectors(TEXTS)[:, :24])).max() < 1e-4
    with pytest.raises(openai.BadRequestError, match="8, 24, 48"):
        client.embeddings.create(model="embedder", input=TEXTS, dimensions=16)
    more = {"prompt_name": "query"}
    found = client.embeddings.create(model="embedder", input=TEXTS[0], extra_body=more)
    wanted = unit(vectors([PROMPTS["query"] + TEXTS[0]]))
    assert np.abs(np.array(found.data[0].embedding) - wanted).max() < 1e-4


def test_a_classifier_embeds_nothing_and_keeps_its_own_method(
    calls: Calls, openai_client: openai.OpenAI
) -> None:
    client = openai_client
    with pytest.raises(openai.BadRequestError, match="scores texts; to embed"):
        client.embeddings.create(model="reranker", input=TEXTS)
    (found,) = calls.post("sentiment", "predict", [{"text": TEXTS[0]}])["instances"]
    assert found["label"] in LABELS
