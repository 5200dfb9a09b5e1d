"""Tokens of texts to embed or to score: instructions before them, pairs, truncation.

Several threads may use it.  A model that generates judges a document by the prompt that
Qwen3-Reranker was trained with, after which it writes "yes" or "no".
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.llm_messages import Refused, RequestRefused
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import Embed, Score, Side
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.images.messages import MediaSource
from mindspore_serving.llm.images.reader import ImageReader, PreparedImage
from mindspore_serving.llm.processing.prepared import PreparedTexts
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput, Tokenizer

Conversation: TypeAlias = list[dict[str, Any]]
PER_TOKEN = 64  # characters: no token is longer, so a longer text cannot fit
PER_TOKEN_CUT = 256  # characters per token of a text that may be truncated


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Text that a client sent as tokens, which no template changes."""

    ids: list[int]


class TextReader:
    """Reads texts for one model.  Its methods raise InvalidInputs or RequestRefused."""

    def __init__(
        self, tokenizer: Tokenizer | None, card: ModelCard, images: ImageReader | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._card = card
        # A model with a cache generates a token behind the text.
        self._limit = card.max_model_len - bool(card.num_blocks)

    def read(self, request: Embed | Score) -> PreparedTexts:
        """Return the tokens of all texts of `request`, each of which fits the model."""
        if isinstance(request, Embed):
            return self._read_embed(request)
        if not self._card.can_score:
            raise InvalidInputs("the model is no classifier, so it scores no texts")
        if request.instruction and not self._card.reads_instructions:
            raise InvalidField("instruction", "is set, but the model reads none: leave it out")
        queries = request.queries
        if len(queries) not in (0, 1, len(request.texts)):
            problem = f"has {len(queries)} entries, expected 1 or {len(request.texts)}"
            raise InvalidField("queries", problem)
        if len(queries) == 1:
            queries = queries * len(request.texts)
        if self._card.reads_instructions:
            return self._read_ranking(request, queries)
        side = request.truncate
        if queries:
            pairs = zip(queries, request.texts, strict=True)
            inputs = [self._encode(query, text, side) for query, text in pairs]
        else:
            inputs = [self._encode(text, None, side) for text in request.texts]
        return PreparedTexts([tokens.ids for tokens in inputs], [tokens.types for tokens in inputs])

    def instructed(self, prompt: str | list[int]) -> str | list[int]:
        """Return `prompt` with the model's default instruction before it, if it is a text."""
        return prompt if isinstance(prompt, list) else self._instruction(None) + prompt

    def conversations(self, request: Embed) -> list["Conversation | TokenPrompt"]:
        """Return what a model that embeds chats reads: conversations, or token ids as they are.

        An instruction is the message of the system.
        """
        if request.messages:
            return [self._with_instruction(request, request.messages)]
        images = {image.index: image for image in request.images}
        conversations: list[Conversation | TokenPrompt] = []
        for index, prompt in enumerate(request.prompts):
            if isinstance(prompt, list):
                conversations.append(TokenPrompt(self.checked(prompt, request.truncate)))
                continue
            content: Any = prompt
            if image := images.get(index):
                source = {"url": image.url}
                content = [{"type": "image_url", "image_url": source, "field": image.field}]
            message = {"role": "user", "content": content}
            conversations.append(self._with_instruction(request, [message]))
        return conversations

    def _with_instruction(self, request: Embed, messages: Conversation) -> Conversation:
        if any(message.get("role") == "system" for message in messages):
            return messages
        text = self._instruction(request.prompt_name)
        if not text and request.prompt_name is None:
            text = EMBEDDING_INSTRUCTION
        return [{"role": "system", "content": text}, *messages] if text else messages

    def _read_embed(self, request: Embed) -> PreparedTexts:
        if not self._card.can_embed:
            raise InvalidInputs(
                "the model embeds no texts: one that generates needs the option embeddings=true, "
                "on the runtimes openvino and torch"
            )
        if request.messages:
            problem = "are set, but the model embeds no conversations: send the texts as prompts"
            raise InvalidField("messages", problem)
        before = self._instruction(request.prompt_name)
        images = self._read_images(request)
        ids: list[list[int]] = []
        for index, prompt in enumerate(request.prompts):
            if index in images:
                ids.append([])
            elif isinstance(prompt, str):
                ids.append(self._encode(before + prompt, None, request.truncate).ids)
            else:
                ids.append(self.checked(prompt, request.truncate))
        return PreparedTexts(ids, images=images)

    def _read_images(self, request: Embed) -> dict[int, PreparedImage]:
        if not request.images:
            return {}
        if self._images is None:
            raise InvalidField(request.images[0].field, "is an image, but the model reads none")
        sources = [MediaSource(image.field, image.url) for image in request.images]
        read = self._images.read(sources)
        return {image.index: each for image, each in zip(request.images, read, strict=True)}

    def _instruction(self, name: str | None) -> str:
        prompts = dict(self._card.prompts)
        name = self._card.default_prompt if name is None else name
        if not name:
            return ""
        if name not in prompts:
            accepted = f"one of {', '.join(prompts)}" if prompts else "none: the model has none"
            raise InvalidField("prompt_name", f"is {name!r}, expected {accepted}")
        return prompts[name]

    def _read_ranking(self, request: Score, queries: list[str]) -> PreparedTexts:
        if not queries:
            raise InvalidField("queries", "are missing: the model judges documents by a query")
        writer = RankingPrompt(with_tokenizer(self._tokenizer), self._limit)
        ids = []
        for query, document in zip(queries, request.texts, strict=True):
            self._check_extent(query, document, request.truncate)
            prompt = writer.read(query, document, request.instruction, request.truncate)
            ids.append(self._checked(prompt))
        return PreparedTexts(ids)

    def _encode(self, text: str, pair: str | None, side: Side) -> TokenizedInput:
        self._check_extent(text, pair or "", side)
        tokenizer, limit = with_tokenizer(self._tokenizer), self._limit
        tokens = tokenizer.encode_whole(text, pair, limit if side else None, side)
        self._checked(tokens.ids)
        return tokens

    def checked(self, ids: list[int], side: Side) -> list[int]:
        """Return the tokens of a text, cut at `side` if they are too many."""
        limit = self._limit
        if side and len(ids) > limit:
            ids = ids[:limit] if side == "right" else ids[-limit:]
        return self._checked(ids)

    def _checked(self, ids: list[int]) -> list[int]:
        if not ids:
            raise RequestRefused(Refused("empty", "a text is empty, expected at least one token"))
        limit = self._limit
        if len(ids) > limit:
            text = f"a text has {len(ids)} tokens, the model takes at most {limit}"
            raise RequestRefused(Refused("context", text, len(ids), limit))
        return ids

    def _check_extent(self, first: str, second: str, side: Side) -> None:
        count = len(first) + len(second)
        limit = (PER_TOKEN_CUT if side else PER_TOKEN) * self._limit
        if count > limit:
            problem = f"a text has {count} characters, more than {limit}: it cannot be read"
            raise RequestRefused(Refused("context", problem, count // PER_TOKEN, self._limit))


def check_extent(text: str, card: ModelCard) -> None:
    """Raise RequestRefused for a prompt that cannot fit: limits before work."""
    limit = PER_TOKEN * card.max_model_len
    if len(text) > limit:
        problem = f"the prompt has {len(text)} characters, more than {limit}: it cannot fit"
        raise RequestRefused(
            Refused("context", problem, len(text) // PER_TOKEN, card.max_model_len)
        )


def with_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return `tokenizer`.  Raises InvalidInputs if it is None."""
    if tokenizer is None:
        raise InvalidInputs("the model has no tokenizer.json: send lists of token ids")
    return tokenizer


EMBEDDING_INSTRUCTION = "Represent the user's input."  # of Qwen3-VL-Embedding
DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PROMPT_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
PROMPT_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class RankingPrompt:
    """Writer of ranking prompts of at most `limit` tokens."""

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(PROMPT_PREFIX, add_special=False)
        self._behind = tokenizer.encode(PROMPT_SUFFIX, add_special=False)
        self._room = limit - len(self._before) - len(self._behind)

    def read(self, query: str, document: str, instruction: str, side: str) -> list[int]:
        """Return the prompt's tokens; if it is too long, query and document are cut at `side`."""
        instruction = instruction or DEFAULT_INSTRUCTION
        words = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        ids = self._tokenizer.encode(words, add_special=False)
        if side and 0 < self._room < len(ids):
            ids = ids[: self._room] if side == "right" else ids[-self._room :]
        return [*self._before, *ids, *self._behind]
