"""Poolers of the last token's state, for models whose tokens see only those before them.

They make a vector, a classifier's logits, or a score from how much likelier "yes" is than "no".
"""

from pathlib import Path

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.pooling import MODULES, Pooling, read_pooling
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.heads import ModuleHead, open_linear
from mindspore_serving.llm.engine.labels import Labels
from mindspore_serving.llm.engine.pooler import Classifier, Pooler, check_head, score_labels
from mindspore_serving.llm.models import is_classifier_config
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.step import Runner
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

LAST = ("lasttoken",)
TOKENS = ("no", "yes")  # of Qwen3-Reranker, where config.json names none


def open_last_token_pooler(
    directory: Path, runner: Runner, config: EngineConfig, tokenizer: Tokenizer | None
) -> Pooler:
    """Return the pooler of the model in `directory`, which `runner` computes.

    Raises StartError for files that are broken or contradict each other, a runtime without states,
    and pooling of other tokens.
    """
    described = find_config(directory)
    is_classifier = is_classifier_config(described)
    if (is_classifier or config.ranking) and not runner.hidden_size:
        raise StartError(
            "the runtime returns no hidden states to score with; use openvino, torch or mindspore"
        )
    if is_classifier:
        return _classifier(Checkpoint.open(directory), runner.hidden_size)
    if config.ranking:
        return _ranker(open_converted(directory), tokenizer)
    if runner.hidden_size and (directory / MODULES).is_file():
        return _pooling(directory, runner.hidden_size)
    return Pooling(LAST)


def _pooling(directory: Path, hidden_size: int) -> Pooling:
    pooling = read_pooling(directory, hidden_size)
    if pooling.modes != LAST:
        modes = ", ".join(pooling.modes)
        raise StartError(
            f"{directory / MODULES} has pooling {modes}, expected lasttoken: in a model that "
            "generates, only the last token has seen the whole text"
        )
    return pooling


def _classifier(checkpoint: Checkpoint, hidden_size: int) -> Classifier:
    head = open_linear(checkpoint, "score")
    check_head(head, hidden_size)
    return Classifier(Pooling(LAST, normalizes=False), head, score_labels(checkpoint.config, head))


def _ranker(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> Classifier:
    """Return a head for the logit of one word minus that of another.

    Its sigmoid is the probability of the first word among the two.
    """
    config = checkpoint.config
    if config.get("final_logit_softcapping"):
        raise StartError("ranking cannot be used with final_logit_softcapping in config.json")
    words = config.get("classifier_from_token") or TOKENS
    if tokenizer is None:
        raise StartError("ranking needs the model's tokenizer.json")
    candidates = [tokenizer.token_id(str(word)) for word in words]
    ids = [token for token in candidates if token is not None]
    if len(ids) != 2 or len(candidates) != 2:
        raise StartError(
            f"ranking is by the tokens {list(words)}, expected two tokens of tokenizer.json"
        )
    is_tied = config.get("tie_word_embeddings") and not checkpoint.has("lm_head.weight")
    table = checkpoint.f32("model.embed_tokens.weight" if is_tied else "lm_head.weight")
    no, yes = table[ids]
    weight = np.ascontiguousarray(yes - no)
    head = ModuleHead(lambda states: (states @ weight)[:, None], 1)
    return Classifier(Pooling(LAST, normalizes=False), head, Labels((str(words[1]),)))
