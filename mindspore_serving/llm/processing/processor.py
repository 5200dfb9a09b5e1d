"""Before an engine sees a request: chat template, tokens, grammar, and whether it fits.

Runs in a pool beside the step loop; everything here may be called by several threads.
"""

import threading
from typing import TYPE_CHECKING, NoReturn

from mindspore_serving.core.llm_messages import (
    Detokenize,
    Generate,
    Grammar,
    ModelCard,
    Refused,
    Tokenize,
    Tokenized,
)
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.loader import Opened
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.prompts import adapter_place
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mindspore_serving.llm.grammar.compiler import CompiledGrammar, GrammarCompiler


class PromptRefused(InvalidInputs):
    """A request that is not taken; `refused` says why."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused


class Processor:
    """Makes of an ask what the engine wants.  Its methods raise PromptRefused or InvalidInputs."""

    def __init__(self, opened: Opened, card: ModelCard) -> None:
        self._card = card
        self._tokenizer = opened.tokenizer
        self._chat_template = opened.chat_template
        self._compiler: GrammarCompiler | None = None  # made when the first grammar comes
        self._lock = threading.Lock()

    def prompt(self, ask: Generate) -> list[int]:
        """The prompt's tokens, which fit the model."""
        if not self._card.can_generate:
            raise InvalidInputs("the model embeds texts, it does not generate any")
        ids = ask.prompt if isinstance(ask.prompt, list) else self._encode(*self._text(ask))
        if ask.truncate is not None:
            if ask.truncate < 1:
                raise InvalidInputs(f"truncate is {ask.truncate}, expected an int >= 1")
            ids = ids[-ask.truncate :]
        if not ids:
            _refuse(Refused("empty", "the prompt is empty, expected at least one token"))
        self._check_length(len(ids), ask.params.max_tokens or 0, must_fit=ask.must_fit)
        return ids

    def embedded(self, prompt: str | list[int]) -> list[int]:
        """The tokens of a text to embed."""
        if not self._card.can_embed:
            raise InvalidInputs("the model's runtime has no embeddings; take openvino or torch")
        ids = prompt if isinstance(prompt, list) else self._encode(prompt, add_special=True)
        if not ids:
            _refuse(Refused("empty", "a prompt is empty, expected at least one token"))
        most = self._card.max_model_len
        if len(ids) > most:
            text = f"a prompt has {len(ids)} tokens, the model takes at most {most}"
            _refuse(Refused("context", text, len(ids), 0, most))
        return ids

    def grammar(self, grammar: Grammar | None) -> "CompiledGrammar | None":
        if grammar is None:
            return None
        try:
            return self._open_compiler().compile(grammar)
        except InvalidInputs as error:
            _refuse(Refused("grammar", str(error)))

    def adapter(self, name: str) -> int:
        return adapter_place(name or None, self._card.adapters)

    def tokenize(self, ask: Tokenize, teller: OutputProcessor) -> Tokenized:
        text, add_special = self._text(ask)
        self._check_extent(text)
        ids, offsets = self._with_tokenizer().encode_with_offsets(text, add_special)
        return Tokenized(text, teller.prompt(ids), tuple(offsets))

    def detokenize(self, ask: Detokenize) -> str:
        most = self._card.vocab_size
        for token_id in ask.token_ids:
            if not 0 <= token_id < most:
                raise InvalidInputs(
                    f"token id {token_id} is out of range, expected 0 to {most - 1}"
                )
        return self._with_tokenizer().decode(ask.token_ids, ask.skip_special_tokens)

    def warm(self) -> None:
        """Get ready for grammars, which takes a second for a large vocabulary."""
        if self._tokenizer is not None and self._card.can_generate:
            self._open_compiler()

    def _open_compiler(self) -> "GrammarCompiler":
        from mindspore_serving.llm.grammar.compiler import GrammarCompiler  # and its library

        with self._lock:
            if self._compiler is None:
                card, tokenizer = self._card, self._with_tokenizer()
                self._compiler = GrammarCompiler(tokenizer, card.vocab_size, card.eos_ids)
            return self._compiler

    def _text(self, ask: Generate | Tokenize) -> tuple[str, bool]:
        """The prompt as text, and whether the tokenizer is to add special tokens to it."""
        if ask.messages is None:
            if not isinstance(ask.prompt, str):
                raise InvalidInputs("neither a prompt nor messages were given")
            return ask.prompt, ask.add_special
        if ask.prompt is not None:
            raise InvalidInputs("both a prompt and messages were given, expected one")
        template = self._with_chat_template()
        options = dict(ask.template_options)
        adds = bool(options.pop("add_generation_prompt", True))
        try:
            text = template.render(
                ask.messages, add_generation_prompt=adds, tools=ask.tools, options=options
            )
        except InvalidInputs as error:
            _refuse(Refused("template", str(error)))
        return text, False  # the template has written them

    def _encode(self, text: str, add_special: bool) -> list[int]:
        self._check_extent(text)
        return self._with_tokenizer().encode(text, add_special)

    def _check_extent(self, text: str) -> None:
        most = 64 * self._card.max_model_len  # no token is as long; limits before work
        if len(text) > most:
            told = f"the prompt has {len(text)} characters, more than {most}: it cannot fit"
            _refuse(Refused("context", told, len(text) // 64, 0, self._card.max_model_len))

    def _check_length(self, count: int, max_tokens: int, *, must_fit: bool) -> None:
        most = self._card.max_model_len
        if count >= most or (must_fit and count + max_tokens > most):
            asked = f" and {max_tokens} are asked for" if max_tokens else ""
            text = f"the prompt has {count} tokens{asked}, the model takes {most} for both together"
            _refuse(Refused("context", text, count, max_tokens, most))

    def _with_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidInputs("the model has no tokenizer.json: give token ids")
        return self._tokenizer

    def _with_chat_template(self) -> ChatTemplate:
        if self._chat_template is None:
            text = "the model has no chat template; send a prompt as text"
            _refuse(Refused("template", text))
        return self._chat_template


def _refuse(refused: Refused) -> NoReturn:
    raise PromptRefused(refused)
