"""Bodies of Gemini's requests; attributes have the names of their fields."""

from typing import Any

import msgspec

from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.gemini.fields import GENERATION

Object = dict[str, Any]


class GeminiBlob(msgspec.Struct):
    """Bytes of an image, a video, a PDF or a text, in base64."""

    mimeType: str
    data: str


class GeminiFile(msgspec.Struct):
    """URL of such a file."""

    fileUri: str
    mimeType: str = ""


class GeminiFunctionCall(msgspec.Struct):
    """Call of a function."""

    name: str
    args: Object | None = None
    id: str | None = None


class GeminiResultPart(msgspec.Struct):
    """File in the result of a function."""

    inlineData: GeminiBlob | None = None
    fileData: GeminiFile | None = None


class GeminiFunctionResponse(msgspec.Struct):
    """Result of a function: `output` or `error` of `response`, else all of it."""

    name: str
    response: Object | None = None
    id: str | None = None
    parts: list[GeminiResultPart] | None = None


class GeminiPart(msgspec.Struct):
    """Part of a content; one field says what it is, and `thought` that a text is reasoning.

    The last four are of tools that only Google's server runs.
    """

    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    inlineData: GeminiBlob | None = None
    fileData: GeminiFile | None = None
    functionCall: GeminiFunctionCall | None = None
    functionResponse: GeminiFunctionResponse | None = None
    executableCode: Any = None
    codeExecutionResult: Any = None
    toolCall: Any = None
    toolResponse: Any = None


class GeminiContent(msgspec.Struct):
    """A message; without a role it is the user's."""

    parts: list[GeminiPart] = []
    role: str | None = None


class FunctionDeclaration(msgspec.Struct):
    """A function, with its parameters as a JSON schema or in Gemini's own form."""

    name: str
    description: str | None = None
    parameters: Object | None = None
    parametersJsonSchema: Object | None = None


class GeminiTool(msgspec.Struct):
    """Functions; the other fields are tools that only Google's server runs."""

    functionDeclarations: list[FunctionDeclaration] | None = None
    googleSearch: Any = None
    googleSearchRetrieval: Any = None
    googleMaps: Any = None
    codeExecution: Any = None
    urlContext: Any = None
    fileSearch: Any = None
    computerUse: Any = None
    mcpServers: Any = None


class FunctionCallingConfig(msgspec.Struct):
    """Choice of a function."""

    mode: str | None = None
    allowedFunctionNames: list[str] | None = None


class GeminiToolConfig(msgspec.Struct):
    """Options of the tools."""

    functionCallingConfig: FunctionCallingConfig | None = None


class ThinkingConfig(msgspec.Struct):
    """Options of the reasoning."""

    includeThoughts: bool | None = None
    thinkingBudget: Int | None = None
    thinkingLevel: str | None = None


@GENERATION.extend
class GenerationConfig(msgspec.Struct, kw_only=True):
    """Options of the answer; `Fields.extend` adds sampling parameters."""

    topK: float | None = None
    responseMimeType: str | None = None
    responseSchema: Object | None = None
    responseJsonSchema: Any = None
    responseLogprobs: bool | None = None
    responseModalities: list[str] | None = None
    thinkingConfig: ThinkingConfig | None = None


class GenerateContentRequest(msgspec.Struct, kw_only=True):
    """Body of generateContent and streamGenerateContent."""

    contents: list[GeminiContent]
    model: str | None = None
    systemInstruction: GeminiContent | None = None
    tools: list[GeminiTool] | None = None
    toolConfig: GeminiToolConfig | None = None
    generationConfig: GenerationConfig | None = None
    safetySettings: Any = None
    cachedContent: Any = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """Body of countTokens: contents, or a complete request."""

    contents: list[GeminiContent] | None = None
    generateContentRequest: GenerateContentRequest | None = None


class EmbedContentRequest(msgspec.Struct, kw_only=True):
    """Body of embedContent, and an entry of batchEmbedContents."""

    content: GeminiContent
    model: str | None = None
    taskType: str | None = None
    title: str | None = None
    outputDimensionality: Int | None = None


class BatchEmbedContentsRequest(msgspec.Struct, kw_only=True):
    """Body of batchEmbedContents."""

    requests: list[EmbedContentRequest]
