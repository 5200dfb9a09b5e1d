"""Bodies of the answers of Gemini's protocol; attributes have the names of their fields."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class GeminiProblem(msgspec.Struct):
    """Status of an error, its text, and the name of the status."""

    code: int
    message: str
    status: str


class GeminiError(msgspec.Struct):
    """Body of an error."""

    error: GeminiProblem


class GeminiAnswerContent(msgspec.Struct):
    """Parts of an answer: texts, thoughts and calls of functions."""

    parts: list[dict[str, Any]]
    role: str = "model"


class Candidate(msgspec.Struct, kw_only=True):
    """An answer, or a part of it; the last part has the reason why it ended."""

    content: GeminiAnswerContent
    finishReason: str | UnsetType = UNSET
    finishMessage: str | UnsetType = UNSET
    index: int
    avgLogprobs: float | UnsetType = UNSET
    logprobsResult: dict[str, Any] | UnsetType = UNSET


class UsageMetadata(msgspec.Struct, kw_only=True):
    """Counts of tokens; those of the candidates are without thoughts."""

    promptTokenCount: int
    cachedContentTokenCount: int | UnsetType = UNSET
    candidatesTokenCount: int = 0
    thoughtsTokenCount: int | UnsetType = UNSET
    totalTokenCount: int


class GenerateContentResponse(msgspec.Struct, kw_only=True):
    """Answer of generateContent, and an event of streamGenerateContent."""

    candidates: list[Candidate]
    usageMetadata: UsageMetadata
    modelVersion: str
    responseId: str


class TokenCount(msgspec.Struct):
    """Answer of countTokens."""

    totalTokens: int


class ContentEmbedding(msgspec.Struct):
    """Vector of a content."""

    values: list[float]


class EmbedContentResponse(msgspec.Struct):
    """Answer of embedContent."""

    embedding: ContentEmbedding
    usageMetadata: dict[str, int]


class BatchEmbedContentsResponse(msgspec.Struct):
    """Answer of batchEmbedContents."""

    embeddings: list[ContentEmbedding]
    usageMetadata: dict[str, int]


class GeminiModel(msgspec.Struct, kw_only=True):
    """A model."""

    name: str
    version: str
    displayName: str
    description: str
    inputTokenLimit: int
    outputTokenLimit: int
    supportedGenerationMethods: list[str]
    thinking: bool


class GeminiModels(msgspec.Struct):
    """The models."""

    models: list[GeminiModel]
