"""Languages of models that translate, chosen by requests, against transformers."""

import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors

pytest.importorskip("openvino")

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm import LLM
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.llm.tokenization.languages import language_token, with_source
from tests.llm import translators
from tests.llm.runtimes.test_seq2seq import scores_of
from tests.llm.translators import END, ENGLISH, FAMILIES, FRENCH, PAD

pytestmark = pytest.mark.torch
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("languages")


def build(name, place, start):
    """A model whose prompts begin with English; `start` are the first tokens of its decoder."""
    directory = translators.build(name, place / "-".join(map(str, start)))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    special = [("</s>", END), ("en_XX", ENGLISH)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="en_XX $A </s>", special_tokens=special
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    file = directory / "generation_config.json"
    noted = dict(zip(("decoder_start_token_id", "forced_bos_token_id"), start, strict=False))
    file.write_text(json.dumps(json.loads(file.read_text()) | noted))
    return directory


@pytest.mark.parametrize(
    ("name", "start"),
    [("mbart", [END, FRENCH]), ("mbart", [FRENCH]), ("m2m100", [END])],
    ids=["mbart-50", "mbart", "m2m100"],
)
def test_answers_are_in_the_language_of_the_request(name, start, place):
    directory = build(name, place, start)
    kind = getattr(transformers, FAMILIES[name][0])
    model = kind.from_pretrained(directory, dtype=torch.float64).eval()
    first = {} if len(start) == 1 and start[0] != END else {"decoder_start_token_id": END}
    answers = {}
    with LLM(directory, dtype="f32") as llm:
        for source, target in [("fr_XX", "en"), ("en_XX", "fr_XX"), ("", "en_XX")]:
            options = {"source_language": source, "target_language": target}
            (answer,) = llm.generate("hello, you!", GREEDY, use_tqdm=False, **options)
            answers[source, target] = answer
        with pytest.raises(InvalidField, match="target_language is 'fi', expected one of en_XX"):
            llm.generate("hello", GREEDY, use_tqdm=False, target_language="fi")
        with pytest.raises(InvalidField, match="expected a prompt that begins or ends with"):
            llm.generate([[8, 9]], GREEDY, use_tqdm=False, source_language="fr")
    for (source, target), answer in answers.items():
        ids = answer.prompt_token_ids
        assert ids[0] == (FRENCH if source == "fr_XX" else ENGLISH)
        token = FRENCH if target == "fr_XX" else ENGLISH
        chosen = {**first, "forced_bos_token_id": token} if first else {"forced_bos_token_id": None}
        chosen = chosen if first else {**chosen, "decoder_start_token_id": token}
        expected = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=12 + bool(first), **chosen
        )[0].tolist()
        assert expected[1 if first else 0] == token
        begin, output = 2 if first else 1, answer.outputs[0]
        assert expected[begin:] == list(output.token_ids)
        scores = scores_of(model, ids, expected[:begin], expected[begin:])
        if "bad_words_ids" in FAMILIES[name][1]:
            scores[:, PAD] = -np.inf
        scores = (scores - np.log(np.exp(scores).sum(-1, keepdims=True))).max(-1)
        logprobs = [entries[0].logprob for entries in output.logprobs]
        assert np.abs(scores - logprobs).max() < 1e-4
    firsts = {answer.outputs[0].logprobs[0][0].logprob for answer in answers.values()}
    assert len(firsts) == len(answers)


def test_the_card_lists_the_languages(place):
    directory = build("m2m100", place / "card", [END])
    opened, engine = open_ours(directory, "openvino", EngineConfig(dtype="f32"))
    engine.close()
    assert opened.card().languages == ("en_XX", "fr_XX")


def test_a_code_may_leave_out_the_script_of_a_single_language():
    languages = {"eng_Latn": 1, "zho_Hans": 2, "zho_Hant": 3}
    assert language_token(languages, "tgt_lang", "eng") == 1
    with pytest.raises(InvalidField, match="is 'zho', expected one of zho_Hans, zho_Hant$"):
        language_token(languages, "tgt_lang", "zho")
    assert with_source([9, 8, 1], languages, "zho_Hans") == [9, 8, 2]
    many = {f"l{number}": number for number in range(70)}
    with pytest.raises(InvalidField, match="l59 and 10 more$"):
        language_token(many, "tgt_lang", "x")
