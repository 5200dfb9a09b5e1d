"""The tokens of texts to embed or to score: instructions in front of them, pairs, what is too long.

Several threads may use it.  A model that generates judges a document by the words that
Qwen3-Reranker was trained with, after which it writes "yes" or "no".
"""

from mindspore_serving.core.llm_messages import Refused, RequestRefused
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import Embed, Score, Side
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.processing.work import Prompts
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput, Tokenizer

PER_TOKEN = 64  # characters: no token is longer, so a longer text cannot fit
PER_TOKEN_CUT = 256  # of a text that is cut: what is behind is not looked at


class TextReader:
    """Reads for one model.  Its methods raise InvalidInputs or RequestRefused."""

    def __init__(self, tokenizer: Tokenizer | None, card: ModelCard) -> None:
        self._tokenizer = tokenizer
        self._card = card
        # A model with a cache has it for one token more.
        self._most = card.max_model_len - bool(card.num_blocks)

    def read(self, request: Embed | Score) -> Prompts:
        """The tokens of all texts of `request`, each of which fits the model."""
        if isinstance(request, Embed):
            return self._read_embed(request)
        if not self._card.can_score:
            raise InvalidInputs("the model is no classifier, so it scores no texts")
        if request.instruction and not self._card.reads_instructions:
            raise InvalidField("instruction", "is given, but the model reads none: leave it out")
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
            found = [self._encode(query, text, side) for query, text in pairs]
        else:
            found = [self._encode(text, None, side) for text in request.texts]
        return Prompts([one.ids for one in found], [one.types for one in found])

    def instructed(self, prompt: str | list[int]) -> str | list[int]:
        """`prompt` as it is embedded where nothing is said: a text behind the model's default
        instruction.
        """
        return prompt if isinstance(prompt, list) else self._instruction(None) + prompt

    def _read_embed(self, request: Embed) -> Prompts:
        if not self._card.can_embed:
            raise InvalidInputs(
                "the model embeds no texts: a model that generates does only with the option "
                "embeddings=true, on the runtimes openvino and torch"
            )
        before = self._instruction(request.prompt_name)
        ids = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                ids.append(self._encode(before + prompt, None, request.truncate).ids)
            else:
                ids.append(self._fitting(prompt, request.truncate))
        return Prompts(ids)

    def _instruction(self, name: str | None) -> str:
        prompts = dict(self._card.prompts)
        wanted = self._card.default_prompt if name is None else name
        if not wanted:
            return ""
        if wanted not in prompts:
            accepted = f"one of {', '.join(prompts)}" if prompts else "none: the model has none"
            raise InvalidField("prompt_name", f"is {wanted!r}, expected {accepted}")
        return prompts[wanted]

    def _read_ranking(self, request: Score, queries: list[str]) -> Prompts:
        if not queries:
            raise InvalidField("queries", "are missing: the model judges documents by a query")
        writer = RankingPrompt(with_tokenizer(self._tokenizer), self._most)
        ids = []
        for query, document in zip(queries, request.texts, strict=True):
            self._check_extent(query, document, request.truncate)
            found = writer.read(query, document, request.instruction, request.truncate)
            ids.append(self._checked(found))
        return Prompts(ids)

    def _encode(self, text: str, pair: str | None, side: Side) -> TokenizedInput:
        self._check_extent(text, pair or "", side)
        tokenizer, most = with_tokenizer(self._tokenizer), self._most
        found = tokenizer.encode_whole(text, pair, most if side else None, side)
        self._checked(found.ids)
        return found

    def _fitting(self, ids: list[int], side: Side) -> list[int]:
        most = self._most
        if side and len(ids) > most:
            ids = ids[:most] if side == "right" else ids[-most:]
        return self._checked(ids)

    def _checked(self, ids: list[int]) -> list[int]:
        if not ids:
            raise RequestRefused(Refused("empty", "a text is empty, expected at least one token"))
        most = self._most
        if len(ids) > most:
            text = f"a text has {len(ids)} tokens, the model takes at most {most}"
            raise RequestRefused(Refused("context", text, len(ids), most))
        return ids

    def _check_extent(self, first: str, second: str, side: Side) -> None:
        count, most = len(first) + len(second), self._most
        limit = (PER_TOKEN_CUT if side else PER_TOKEN) * most
        if count > limit:
            problem = f"a text has {count} characters, more than {limit}: it cannot be read"
            raise RequestRefused(Refused("context", problem, count // PER_TOKEN, most))


def check_extent(text: str, card: ModelCard) -> None:
    """Raises RequestRefused for a prompt that cannot fit: limits before work."""
    most = PER_TOKEN * card.max_model_len
    if len(text) > most:
        problem = f"the prompt has {len(text)} characters, more than {most}: it cannot fit"
        raise RequestRefused(
            Refused("context", problem, len(text) // PER_TOKEN, card.max_model_len)
        )


def with_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Raises InvalidInputs if there is none."""
    if tokenizer is None:
        raise InvalidInputs("the model has no tokenizer.json: give lists of token ids")
    return tokenizer


INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class RankingPrompt:
    """Writes prompts of at most `most` tokens."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(BEFORE, add_special=False)
        self._behind = tokenizer.encode(BEHIND, add_special=False)
        self._room = most - len(self._before) - len(self._behind)

    def read(self, query: str, document: str, instruction: str, side: str) -> list[int]:
        """The prompt's tokens; if it is too long and there is a `side`, query and document are cut
        there.
        """
        words = (
            f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        )
        ids = self._tokenizer.encode(words, add_special=False)
        if side and 0 < self._room < len(ids):
            ids = ids[: self._room] if side == "right" else ids[-self._room :]
        return [*self._before, *ids, *self._behind]
