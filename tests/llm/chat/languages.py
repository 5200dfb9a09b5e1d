"""Vocabularies with and without the markers of calls as special tokens, to try grammars on."""

from typing import Any

from tokenizers import AddedToken

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.llm.grammar.compiler import GrammarCompiler
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.tokenizers_trained import byte_level

MARKERS = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|action_start|>", "<|plugin|>",
           "<|action_end|>", "<tool_call>", "</tool_call>", "<|python_tag|>",
           "<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>",
           "</arg_value>"]  # fmt: skip

Language = tuple[Tokenizer, GrammarCompiler]


def make_language(has_markers: bool) -> Language:
    inner = byte_level()
    if has_markers:
        inner.add_special_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    tokenizer = Tokenizer(inner, {"eos_token": "</s>"})
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)


def allows(language: Language, grammar: Grammar, text: str) -> bool:
    """Whether `text`, as the model would write it, is a whole answer."""
    tokenizer, compiler = language
    state = compiler.compile(grammar).begin()
    for token_id in tokenizer.encode(text, add_special=False):
        state.advance(token_id)
    return state.error is None and state.is_complete


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [tool("get_weather", CITY), tool("get_time")]
CALL = '{"name": "get_weather", "%s": {"city": "Paris"}}'
NOW = '{"name": "get_time", "%s": {}}'
_HERMES = (f"<tool_call>\n{CALL % 'arguments'}\n</tool_call>",
           f"\n<tool_call>\n{NOW % 'arguments'}\n</tool_call>", "")  # fmt: skip
WRITTEN = {  # a call, a second one, and what ends them
    "hermes": _HERMES,
    "generic": _HERMES,
    "llama3": (CALL % "parameters", f"; {NOW % 'parameters'}", ""),
    "mistral": (f"[TOOL_CALLS][{CALL % 'arguments'}", f", {NOW % 'arguments'}", "]"),
    "internlm": (f"<|action_start|><|plugin|>\n{CALL % 'parameters'}<|action_end|>",
                 f"<|action_start|><|plugin|>\n{NOW % 'parameters'}<|action_end|>", ""),
}  # fmt: skip
