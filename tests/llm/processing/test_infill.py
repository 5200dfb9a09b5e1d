"""Prompts that fill in the middle, in the order and with the tokens of each family."""

import pytest
from msgspec.structs import replace
from tokenizers import AddedToken

from mindspore_serving.core.llm_messages import Generate, RequestRefused
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.engine.adapters import AdapterNames
from mindspore_serving.llm.processing.infill import INFILL_FORMS, InfillForm, infill_ids
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.frontends.openai.serving import CARD
from tests.llm.tokenizers_trained import byte_level

PROMPTS = {  # as the models' own pages write them
    "Qwen": "<|fim_prefix|>def f(<|fim_suffix|>): return x<|fim_middle|>",
    "StarCoder": "<fim_prefix>def f(<fim_suffix>): return x<fim_middle>",
    "SantaCoder": "<fim-prefix>def f(<fim-suffix>): return x<fim-middle>",
    "DeepSeek": "<｜fim▁begin｜>def f(<｜fim▁hole｜>): return x<｜fim▁end｜>",
    "Code Llama": "▁<PRE>def f(▁<SUF>): return x▁<MID>",
    "Codestral": "[SUFFIX]): return x[PREFIX]def f(",
}


def tokenizer_with(form: InfillForm | None) -> Tokenizer:
    inner = byte_level()
    tokens = [*form.tokens, *filter(None, [form.end])] if form else []
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    return Tokenizer(inner, {"eos_token": "</s>"})


def processor_of(form: InfillForm | None) -> Processor:
    return processor_with(tokenizer_with(form))


def processor_with(tokenizer: Tokenizer) -> Processor:
    card = replace(CARD, vocab_size=tokenizer.vocab_size)
    return Processor(tokenizer, None, card, AdapterNames(()).find)


@pytest.mark.parametrize("form", INFILL_FORMS, ids=lambda form: form.models)
def test_parts_are_in_the_order_of_the_family(form: InfillForm) -> None:
    (expected,) = [text for name, text in PROMPTS.items() if form.models.startswith(name)]
    tokenizer = tokenizer_with(form)
    ids = infill_ids(tokenizer, "def f(", "): return x")
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected
    assert sum(tokenizer.is_special(token_id) for token_id in ids) == len(form.tokens)


def test_each_mark_is_a_single_token_of_the_prompt() -> None:
    form = INFILL_FORMS[0]
    prompt = processor_of(form).read(Generate(prompt="a", suffix="b"))
    assert (prompt.text, len(prompt.ids)) == ("a", 5)


def test_middle_ends_with_the_family_s_own_token() -> None:
    code_llama = next(form for form in INFILL_FORMS if form.end)
    processor = processor_of(code_llama)
    prompt = processor.read(Generate(prompt="a", suffix="b"))
    end = tokenizer_with(code_llama).token_id(code_llama.end)
    assert list(prompt.params.stop_token_ids) == [end]
    assert processor.read(Generate(prompt="a", suffix="")).ids == prompt.ids[:3] + prompt.ids[4:]
    assert not processor.read(Generate(prompt="a")).params.stop_token_ids


@pytest.mark.parametrize(
    ("fields", "form", "problem"),
    [
        ({"prompt": "a"}, None, "no tokens to fill in the middle"),
        ({"prompt": [1, 2]}, INFILL_FORMS[0], "expected a prompt that is text"),
        ({"prompt": "a", "truncate": 3}, INFILL_FORMS[0], "expected no truncation"),
    ],
)
def test_suffix_that_cannot_be_used_is_refused(fields, form, problem) -> None:
    with pytest.raises(InvalidField, match=problem):
        processor_of(form).read(Generate(suffix="b", **fields))


def test_prefix_and_suffix_have_to_fit_together() -> None:
    with pytest.raises(RequestRefused, match="tokens|characters"):
        processor_of(INFILL_FORMS[0]).read(Generate(prompt="a b " * 4000, suffix="c d " * 4000))


MARKS = {  # fill-in-the-middle, repository, file, padding
    "Qwen2.5-Coder": ("<|fim_{}|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"),
    "StarCoder2": ("<fim_{}>", "<repo_name>", "<file_sep>", "<fim_pad>"),
    "CodeGemma": ("<|fim_{}|>", "", "<|file_separator|>", ""),
    "Granite": ("<fim_{}>", "<reponame>", "<filename>", "<fim_pad>"),
}
FILES = [("a.py", "x"), ("b.py", "yy")]


@pytest.mark.parametrize("model", MARKS)
def test_files_are_behind_the_marks_of_a_repository(model: str) -> None:
    fim, repository, file, pad = MARKS[model]
    parts = [fim.format(part) for part in ("prefix", "suffix", "middle")]
    inner = byte_level()
    named = [AddedToken(name, normalized=False) for name in (*parts, repository, file, pad) if name]
    inner.add_special_tokens(named)

    def ids(text: str) -> list[int]:  # by hand: each mark is one token, texts are encoded alone
        return inner.encode(text, add_special_tokens=False).ids

    def mark(name: str) -> list[int]:
        return [inner.token_to_id(name)] if name else []

    expected = [
        *((mark(repository) + ids("myproject\n")) if repository else []),
        *(mark(file) + ids("a.py\nx")),
        *(mark(file) + ids("b.py\nyy")),
        *(mark(file) + ids("filename\n")),
        *(mark(parts[0]) + ids("f(") + mark(parts[1]) + ids(")") + mark(parts[2])),
    ]
    prompt = processor_with(Tokenizer(inner, {"eos_token": "</s>"})).read(
        Generate(prompt="f(", suffix=")", files=FILES)
    )
    assert prompt.ids == expected
    ends = {*mark(pad), *mark(repository), *mark(file)}
    assert set(prompt.params.stop_token_ids) == ends


def test_files_of_a_model_without_marks_are_snippets() -> None:
    deepseek = next(form for form in INFILL_FORMS if form.models.startswith("DeepSeek"))
    prompt = processor_of(deepseek).read(Generate(prompt="f(", suffix=")", files=FILES))
    text = tokenizer_with(deepseek).decode(prompt.ids, skip_special_tokens=False)
    snippet = "\n\n--- snippet ---\n\n"
    assert text == f"{snippet}x{snippet}yy<｜fim▁begin｜>f(<｜fim▁hole｜>)<｜fim▁end｜>"


def test_first_files_are_left_out_if_not_all_fit() -> None:
    files = [("a.py", "x"), ("b.py", "y" * 300), ("c.py", "zz")]
    ids = processor_of(INFILL_FORMS[0]).read(Generate(prompt="p", suffix="s", files=files)).ids
    text = tokenizer_with(INFILL_FORMS[0]).decode(ids)
    assert ("zz" in text, "y" in text, "x" in text) == (True, False, False)
