"""Preparation of a request: chat template, tokens, truncation, grammar, and whether it fits.

Used by the offline interface, and by a worker in a pool beside the step loop: everything here may
be called by several threads.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mindspore_serving.core.llm_messages import (
    Detokenize,
    Generate,
    Grammar,
    LLMRequest,
    Refused,
    RequestRefused,
    Tokenize,
    Tokenized,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import Embed, Score
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField, InvalidInputs, ServingError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.images.media import MediaReader
from mindspore_serving.llm.images.reader import ImageReader, PreparedImage, PromptImageReader
from mindspore_serving.llm.images.sound_reader import SoundReader
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.processing.answer_format import (
    TRANSLATIONS,
    AnswerFormat,
    to_answer_format,
)
from mindspore_serving.llm.processing.chat_prompt import ChatPrompt, Messages, shortened
from mindspore_serving.llm.processing.image_prompt import ImagePrompt, to_prompt_images
from mindspore_serving.llm.processing.infill import (
    check_infill,
    file_ids,
    infill_end_ids,
    infill_ids,
)
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.prepared import PreparedPrompt, PreparedTexts, is_small
from mindspore_serving.llm.processing.text_bias import with_text_bias
from mindspore_serving.llm.processing.text_reader import (
    TextReader,
    TokenPrompt,
    check_extent,
    with_tokenizer,
)
from mindspore_serving.llm.processing.thinking_limit import thinking_limit
from mindspore_serving.llm.tokenization.languages import (
    TARGET,
    find_languages,
    language_token,
    with_source,
)
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mindspore_serving.llm.grammar.compiler import CompiledGrammar, GrammarCompiler


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A `Generate` as an engine takes it; `text` is the prompt's, None if it was token ids."""

    text: str | None
    prompt_ids: list[int]
    params: SamplingParams
    answer_format: AnswerFormat
    bad_words_ids: list[list[int]] | None
    adapter: str  # its number may change until it is added
    options: dict[str, Any]  # further options of `Engine.add`
    is_capped: bool = False  # max_tokens is more than there is room for

    def add_to(self, engine: Any, request_id: str) -> None:
        """Add the request to `engine`.

        Raises what `Engine.add` raises, and InvalidField if the adapter was unloaded.
        """
        words, ids = self.bad_words_ids, self.prompt_ids
        adapter = engine.adapters.find(self.adapter) if self.adapter else 0
        engine.add(
            request_id, ids, self.params, bad_words_ids=words, adapter=adapter, **self.options
        )


def no_adapter(name: str) -> int:
    """Return 0 for "", as `AdapterNames.find` does for a model without adapters."""
    if name:
        raise InvalidField("adapter", f"is {name!r}, expected none: the model has no adapters")
    return 0


class Processor:
    """Prepares the requests to one model.  Its methods raise InvalidInputs or RequestRefused.

    `find_adapter` returns the number of a LoRA adapter by its name, 0 for "".  Unless `is_trusted`,
    grammars may be written by anybody: see `GrammarCompiler`.  `images` reads the images of
    requests and `sounds` their sounds, and `tower` computes them, where requests are completed.
    `limits` are those of files.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        card: ModelCard,
        find_adapter: Callable[[str], int] = no_adapter,
        *,
        is_trusted: bool = True,
        images: ImageReader | None = None,
        sounds: SoundReader | None = None,
        tower: Tower | None = None,
        limits: EngineConfig | None = None,
    ) -> None:
        self.adapter = find_adapter
        in_prompts = images if isinstance(images, PromptImageReader) else None
        self._media = MediaReader(in_prompts, limits or EngineConfig(), sounds)
        self._tower = tower
        self._is_trusted = is_trusted
        self._tokenizer = tokenizer
        special_tokens = tokenizer.special_tokens if tokenizer else {}
        self._chat = ChatPrompt(
            chat_template, special_tokens, card.tool_format, card.system_message
        )
        self._card = card
        self._languages = find_languages(tokenizer) if card.languages else {}
        self.texts = TextReader(tokenizer, card, None if in_prompts else images)
        self._compiler: GrammarCompiler | None = None  # made for the first grammar
        self._lock = threading.Lock()

    def prepare(self, request: Generate) -> PreparedRequest:
        """Return `request` as an engine takes it."""
        return self.complete(request, self.read(request))

    def read(self, request: Generate) -> PreparedPrompt:
        """Return the prompt's tokens and all else that depends on the texts of `request`.

        Its grammar is only written, not compiled.
        """
        if not self._card.can_generate:
            raise InvalidInputs("the model embeds texts and does not generate any")
        answer_format = to_answer_format(request, self._card)
        text, ids, images = self._prompt(request, answer_format.tools)
        if request.source_language:
            ids = with_source(ids, self._languages, request.source_language)
        params = request.params
        if answer_format.shows_special_tokens:
            params = replace(params, skip_special_tokens=False)
        if request.suffix is not None:
            ends = infill_end_ids(self._with_tokenizer())
            params = replace(params, stop_token_ids=[*params.stop_token_ids, *ends])
        params = with_text_bias(params, self._tokenizer)
        words = params.bad_words
        bad_words_ids = self._tokenizer.encode_words(words) if self._tokenizer else None
        return PreparedPrompt(text, ids, params, answer_format, bad_words_ids, images)

    def complete(self, request: Generate, prompt: PreparedPrompt) -> PreparedRequest:
        """Return what the engine takes, from `request` and what was read of it."""
        self.adapter(request.adapter)
        options = {
            "priority": request.priority,
            "tenant": request.tenant,
            "cache_salt": request.cache_salt,
            "grammar": self.grammar(prompt.answer_format.grammar),
            "continues": request.messages is None and not self._card.max_prompt_len,
        }
        thinking = thinking_limit(prompt, self._card, self._tokenizer)
        if thinking is not None:
            options["thinking"] = thinking
        if request.target_language:
            options["target"] = language_token(self._languages, TARGET, request.target_language)
        if prompt.images:
            options["images"] = self.to_images(prompt.ids, prompt.images, prompt.computed)
        room = self._card.max_model_len - len(prompt.ids)
        return PreparedRequest(
            prompt.text,
            prompt.ids,
            prompt.params,
            prompt.answer_format,
            prompt.bad_words_ids,
            request.adapter,
            options,
            is_capped=(prompt.params.max_tokens or 0) > room,
        )

    def see(self, prompts: Sequence[PreparedPrompt]) -> list[PreparedPrompt | ServingError]:
        """Compute the images of several requests together.

        Returns each prompt with what was computed, or why its images cannot be.
        """
        assert self._tower is not None
        computed = self._tower.compute_all([prompt.images for prompt in prompts])
        return [
            result if isinstance(result, ServingError) else structs.replace(prompt, computed=result)
            for prompt, result in zip(prompts, computed, strict=True)
        ]

    def is_quick(self, request: LLMRequest) -> bool:
        """Return whether `request` is read at once, and its grammar is known.

        See `prepared.is_small`.
        """
        if not is_small(request):
            return False
        if not isinstance(request, Generate) or not (request.grammar or request.tools):
            return True
        if request.grammar is not None and request.grammar.kind in TRANSLATIONS:
            return False  # its translation may take seconds
        grammar = to_answer_format(request, self._card).grammar
        return grammar is None or (self._compiler is not None and self._compiler.is_cached(grammar))

    def read_texts(self, request: Embed | Score) -> PreparedTexts:
        """Return the tokens of texts to embed or to score."""
        if isinstance(request, Embed) and self._card.embeds_chats:
            return self._read_chats(request)
        return self.texts.read(request)

    def _read_chats(self, request: Embed) -> PreparedTexts:
        """Return the tokens of conversations to embed, and the images in each."""
        conversations = self.texts.conversations(request)
        sent = [message for chat in conversations if isinstance(chat, list) for message in chat]
        images = ImagePrompt(self._media, sent)
        messages = iter(images.messages or ())
        prompts: list[list[int]] = []
        seen: list[list[PreparedImage]] = []
        for chat in conversations:
            if isinstance(chat, TokenPrompt):
                prompts.append(chat.ids)
                seen.append([])
                continue
            part = [next(messages) for _ in chat]
            text, _ = self._text(Generate(messages=part), None, images)
            seen.append(images.of(part))
            ids = self.encode(text, add_special=False)
            prompts.append(self.texts.checked(ids, "" if seen[-1] else request.truncate))
        return PreparedTexts(prompts, images_in_texts=seen if any(seen) else [])

    def to_images(
        self, ids: Sequence[int], images: Sequence[PreparedImage], computed: Any = None
    ) -> PromptImages:
        """Return the images of a prompt as the engine takes them; `computed` if they are known."""
        assert self._tower is not None
        return to_prompt_images(self._media, self._tower, ids, images, computed)

    def tokenize(self, request: Tokenize, outputs: OutputProcessor) -> Tokenized:
        """Return the tokens of a text or a conversation, with their offsets in it."""
        tools = None if request.tool_choice.mode == "none" else request.tools
        images = self._read_images(request)
        request = structs.replace(request, messages=images.messages)
        text, add_special = self._text(request, tools, images)
        check_extent(text, self._card)
        ids, offsets = self._with_tokenizer().encode_with_offsets(text, add_special)
        return Tokenized(text, outputs.prompt(ids), tuple(offsets))

    def detokenize(self, request: Detokenize) -> str:
        """Return the text of token ids."""
        vocab_size = self._card.vocab_size
        for token_id in request.token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidInputs(
                    f"token id {token_id} is out of range, expected 0 to {vocab_size - 1}"
                )
        return self._with_tokenizer().decode(request.token_ids, request.skip_special_tokens)

    def encode(self, prompt: str | list[int], add_special: bool = True) -> list[int]:
        """Return the tokens of a prompt; token ids are left as they are."""
        if isinstance(prompt, list):
            return prompt
        check_extent(prompt, self._card)
        return self._with_tokenizer().encode(prompt, add_special)

    def grammar(self, grammar: Grammar | None) -> "CompiledGrammar | None":
        """Return the compiled grammar, None if there is none."""
        if grammar is None:
            return None
        try:
            return self._open_compiler().compile(grammar)
        except InvalidInputs as error:
            raise RequestRefused(Refused("grammar", str(error))) from None

    def warm(self) -> None:
        """Load the grammar compiler, which takes a second for a large vocabulary."""
        if self._tokenizer is not None and self._card.can_generate:
            self._open_compiler()

    def _open_compiler(self) -> "GrammarCompiler":
        from mindspore_serving.llm.grammar.compiler import GrammarCompiler  # and its library

        if self._tokenizer is None:
            raise InvalidInputs("a grammar needs a tokenizer, but the model has no tokenizer.json")
        with self._lock:
            if self._compiler is None:
                card = self._card
                self._compiler = GrammarCompiler(
                    self._tokenizer, card.vocab_size, card.eos_ids, is_trusted=self._is_trusted
                )
            return self._compiler

    def _prompt(
        self, request: Generate, tools: Sequence[dict[str, Any]]
    ) -> tuple[str | None, list[int], list[PreparedImage]]:
        """Return the prompt as text, if it is one, as tokens that fit the model, and its images."""
        text = None
        images = self._read_images(request)
        request = structs.replace(request, messages=images.messages)
        if request.suffix is not None:
            text = check_infill(request)
            ids = self._infill(request, text, request.suffix)
        elif isinstance(request.prompt, list) and request.messages is None:
            ids = request.prompt
        else:
            if request.drop_turns and request.messages:
                kept = shortened(
                    request.messages, lambda kept: self._fits(request, kept, tools, images)
                )
                request = structs.replace(request, messages=kept)
            text, add_special = self._text(request, tools, images)
            ids = self.encode(text, add_special)
        if request.truncate is not None:
            if request.truncate < 1:
                raise InvalidField("truncate", f"is {request.truncate}, expected an int >= 1")
            if images.tokens:
                problem = "is set, expected none in a chat with images or sounds"
                raise InvalidField("truncate", problem)
            ids = ids[-request.truncate :]
        if not ids:
            text = "the prompt is empty, expected at least one token"
            raise RequestRefused(Refused("empty", text))
        self._check_length(len(ids))
        return text, ids, images.of(request.messages)

    def _infill(self, request: Generate, prefix: str, suffix: str) -> list[int]:
        """Return the prompt's tokens, with the last of the files as far as they fit."""
        tokenizer, limit = self._with_tokenizer(), self._card.max_model_len
        check_extent(prefix + suffix, self._card)
        ids = infill_ids(tokenizer, prefix, suffix)
        if not request.files:
            return ids
        answer = request.params.max_tokens or limit // 4
        num_bos = len(tokenizer.bos_ids())
        context = file_ids(tokenizer, request.files, limit - 1 - len(ids) - answer)
        return [*ids[:num_bos], *context, *ids[num_bos:]]

    def _read_images(self, request: Generate | Tokenize) -> ImagePrompt:
        markdown = request.markdown if isinstance(request, Generate) else ""
        return ImagePrompt(self._media, request.messages, markdown)

    def _fits(
        self,
        request: Generate,
        messages: Messages,
        tools: Sequence[dict[str, Any]],
        images: ImagePrompt,
    ) -> bool:
        """Return whether the prompt of `messages` fits, with room for a token of the answer."""
        request = structs.replace(request, messages=messages)
        text, add_special = self._text(request, tools, images)
        try:
            return len(self.encode(text, add_special)) < self._card.max_model_len
        except RequestRefused:  # too many characters
            return False

    def _text(
        self,
        request: Generate | Tokenize,
        tools: Sequence[dict[str, Any]] | None,
        images: ImagePrompt,
    ) -> tuple[str, bool]:
        """Return the prompt as text, and whether the tokenizer is to add special tokens to it."""
        if request.messages is None:
            if not isinstance(request.prompt, str):
                raise InvalidInputs("the request has neither a prompt nor messages")
            return images.expand_markdown(request.prompt), request.add_special
        if request.prompt is not None:
            raise InvalidInputs("the request has both a prompt and messages, expected one of them")
        text = images.expand(self._chat.text(request, tools, images.tokens), request.messages)
        start = request.answer_start if isinstance(request, Generate) else ""
        return text + start, False  # the template has written them

    def _check_length(self, count: int) -> None:
        limit, longest = self._card.max_model_len, self._card.longest_prompt
        if count > longest:
            with_answer = f"{limit} together with the answer"
            text = (
                f"the prompt has {count} tokens, the model takes at most "
                f"{with_answer if longest == limit - 1 else longest}"
            )
            raise RequestRefused(Refused("context", text, count, limit))

    def _with_tokenizer(self) -> Tokenizer:
        return with_tokenizer(self._tokenizer)
