"""What each client library does, run by a Python that has it: `programs.py NAME URL`.

The last line is JSON: the library's version and what came out.  Imports nothing of the server.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

QUESTION = "What is the weather in Paris?"
WISH = "Anna is 31."


def _openai(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


def _person() -> Any:
    import pydantic

    return pydantic.create_model("Person", name=(str, ...), age=(int, ...))


def instructor(url: str, mode: str) -> Any:
    import instructor

    client = instructor.from_openai(_openai(url), mode=getattr(instructor.Mode, mode))
    found = client.chat.completions.create(
        model="toy",
        response_model=_person(),
        max_retries=0,
        messages=[{"role": "user", "content": WISH}],
    )
    return found.model_dump()


def _pydantic_ai_model(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("toy", provider=OpenAIProvider(base_url=url, api_key="none"))


def pydantic_ai_tools(url: str) -> Any:
    from pydantic_ai import Agent

    agent = Agent(_pydantic_ai_model(url))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    return agent.run_sync(QUESTION).output


def pydantic_ai_output(url: str, kind: str) -> Any:
    import pydantic_ai

    output = getattr(pydantic_ai, kind)(_person())
    return (
        pydantic_ai.Agent(_pydantic_ai_model(url), output_type=output)
        .run_sync(WISH)
        .output.model_dump()
    )


def openai_agents(url: str) -> Any:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    model = agents.OpenAIChatCompletionsModel(model="toy", openai_client=client)
    agent = agents.Agent(name="one", instructions="Be brief.", tools=[get_weather], model=model)
    return agents.Runner.run_sync(agent, QUESTION).final_output


def llama_index(url: str) -> Any:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike

    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    llm = OpenAILike(
        model="toy",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=4096,
        max_retries=0,
    )

    async def ask() -> str:
        return str(await FunctionAgent(tools=[get_weather], llm=llm).run(QUESTION))

    return asyncio.run(ask())


def smolagents(url: str) -> Any:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name.
        """
        return f"sunny in {city}"

    model = OpenAIServerModel(model_id="toy", api_base=url, api_key="none")
    return ToolCallingAgent(tools=[get_weather], model=model, max_steps=3, verbosity_level=0).run(
        QUESTION
    )


def dify(url: str) -> Any:
    from dify_plugin.entities.model.message import (
        PromptMessageTool,
        ToolPromptMessage,
        UserPromptMessage,
    )
    from dify_plugin.interfaces.model.openai_compatible.llm import OAICompatLargeLanguageModel

    class Model(OAICompatLargeLanguageModel):
        def _get_num_tokens_by_gpt2(self, text: str) -> int:  # else it downloads a tokenizer
            return len(text)

    model = Model(model_schemas=[])
    credentials = {
        "endpoint_url": f"{url}/",
        "mode": "chat",
        "function_calling_type": "tool_call",
        "stream_function_calling": "support",
        "context_size": "8192",
    }
    model.validate_credentials("toy", credentials)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = PromptMessageTool(name="get_weather", description="Weather.", parameters=parameters)
    messages: list[Any] = [UserPromptMessage(content=QUESTION)]
    for _ in range(2):
        chunks = [*model.invoke("toy", credentials, messages, {}, [tool], stream=True)]
        texts = [chunk.delta.message.content or "" for chunk in chunks]
        calls = [call for chunk in chunks for call in chunk.delta.message.tool_calls]
        if not calls:
            return "".join(texts)
        city = json.loads(calls[0].function.arguments)["city"]
        said = [chunk.delta.message for chunk in chunks if chunk.delta.message.tool_calls]
        messages += [
            said[0],
            ToolPromptMessage(content=f"sunny in {city}", tool_call_id=calls[0].id),
        ]
    return "no answer"


Program = Callable[[str], Any]
PROGRAMS: dict[str, tuple[str, Program]] = {
    "instructor TOOLS": ("instructor", lambda url: instructor(url, "TOOLS")),
    "instructor JSON_SCHEMA": ("instructor", lambda url: instructor(url, "JSON_SCHEMA")),
    "pydantic-ai tools": ("pydantic-ai-slim", pydantic_ai_tools),
    "pydantic-ai ToolOutput": (
        "pydantic-ai-slim",
        lambda url: pydantic_ai_output(url, "ToolOutput"),
    ),
    "pydantic-ai NativeOutput": (
        "pydantic-ai-slim",
        lambda url: pydantic_ai_output(url, "NativeOutput"),
    ),
    "openai-agents": ("openai-agents", openai_agents),
    "llama-index": ("llama-index-llms-openai-like", llama_index),
    "smolagents": ("smolagents", smolagents),
    "dify": ("dify_plugin", dify),
}

if __name__ == "__main__":
    package, program = PROGRAMS[sys.argv[1]]
    print(json.dumps({"version": version(package), "found": program(sys.argv[2])}))
