"""Sixty small tasks with tools, of our own: what a user says, the tools there are, and the calls
that are right; none where the answer is to be words.
"""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """`calls` are (name, arguments) in any order."""

    says: str
    tools: tuple[str, ...]
    calls: tuple[tuple[str, Object], ...] = ()


def _tool(name: str, description: str, required: Object, **optional: Object) -> Object:
    parameters = {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_TEXT = {"type": "string", "maxLength": 60}
_INT = {"type": "integer"}
_NUMBER = {"type": "number"}
_UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}

TOOLS: dict[str, Object] = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "The weather in a city", {"city": _TEXT}),
        _tool("get_time", "What time it is in a city", {"city": _TEXT}),
        _tool("add", "The sum of two numbers", {"a": _NUMBER, "b": _NUMBER}),
        _tool("multiply", "The product of two numbers", {"a": _NUMBER, "b": _NUMBER}),
        _tool("set_timer", "Start a timer", {"minutes": _INT}),
        _tool("play_song", "Play a song", {"title": _TEXT}),
        _tool("send_mail", "Send a mail", {"to": _TEXT, "text": _TEXT}),
        _tool("translate", "Translate a word", {"word": _TEXT, "language": _TEXT}),
        _tool("convert_temperature", "To another unit", {"degrees": _NUMBER, "to": _UNIT}),
        _tool("find_book", "Look for a book of an author", {"author": _TEXT}),
        _tool("switch_light", "Turn a light on or off", {"room": _TEXT, "on": {"type": "boolean"}}),
        _tool("get_price", "The price of a stock", {"symbol": _TEXT}),
    )
}  # fmt: skip


def _city(name: str, city: str, says: str, *others: str) -> Task:
    return Task(says, (name, *others), ((name, {"city": city}),))


def _numbers(name: str, a: float, b: float, says: str, *others: str) -> Task:
    return Task(says, (name, *others), ((name, {"a": a, "b": b}),))


def _one(says: str, name: str, arguments: Object, *others: str) -> Task:
    return Task(says, (name, *others), ((name, arguments),))


_SINGLE = (
    _city("get_weather", "Paris", "What is the weather in Paris?"),
    _city("get_weather", "Tokyo", "How is the weather in Tokyo today?"),
    _city("get_weather", "Berlin", "Is it raining in Berlin?"),
    _city("get_weather", "New York", "Tell me the weather in New York."),
    _city("get_time", "London", "What time is it in London?"),
    _city("get_time", "Sydney", "Tell me the time in Sydney, please."),
    _city("get_time", "Rome", "How late is it in Rome now?"),
    _numbers("add", 2, 3, "What is the sum of 2 and 3?"),
    _numbers("add", 17, 25, "Add 17 and 25."),
    _numbers("add", 100, 250, "Please add 100 and 250."),
    _numbers("multiply", 6, 7, "Multiply 6 by 7."),
    _numbers("multiply", 12, 12, "What is the product of 12 and 12?"),
    _one("Set a timer for 5 minutes.", "set_timer", {"minutes": 5}),
    _one("Start a timer of 10 minutes.", "set_timer", {"minutes": 10}),
    _one("I need a timer for 25 minutes.", "set_timer", {"minutes": 25}),
    _one("Play the song Yesterday.", "play_song", {"title": "Yesterday"}),
    _one("Play Imagine.", "play_song", {"title": "Imagine"}),
    _one("Translate dog to French.", "translate", {"word": "dog", "language": "French"}),
    _one("Translate house to German.", "translate", {"word": "house", "language": "German"}),
    _one("Look for books by Tolstoy.", "find_book", {"author": "Tolstoy"}),
    _one("Find a book by Jane Austen.", "find_book", {"author": "Jane Austen"}),
    _one("What is the price of AAPL?", "get_price", {"symbol": "AAPL"}),
    _one("Give me the stock price of MSFT.", "get_price", {"symbol": "MSFT"}),
    _one("Turn on the light in the kitchen.", "switch_light", {"room": "kitchen", "on": True}),
    _one("Turn the bedroom light off.", "switch_light", {"room": "bedroom", "on": False}),
    _one("Send a mail to Anna with the text Hello.", "send_mail", {"to": "Anna", "text": "Hello"}),
    _one("Convert 30 degrees to fahrenheit.", "convert_temperature",
         {"degrees": 30, "to": "fahrenheit"}),
    _one("Convert 68 degrees to celsius.", "convert_temperature", {"degrees": 68, "to": "celsius"}),
)  # fmt: skip

_CHOSEN = (
    _city("get_weather", "Madrid", "What is the weather in Madrid?", "get_time"),
    _city("get_time", "Madrid", "What time is it in Madrid?", "get_weather"),
    _city("get_weather", "Oslo", "How is the weather in Oslo?", "add", "set_timer"),
    _city("get_time", "Moscow", "What time is it in Moscow?", "play_song", "translate"),
    _numbers("add", 8, 9, "Add 8 and 9.", "multiply"),
    _numbers("multiply", 8, 9, "Multiply 8 by 9.", "add"),
    _numbers("add", 1.5, 2.5, "Add 1.5 and 2.5.", "get_weather", "multiply"),
    _numbers("multiply", 3, 15, "What is the product of 3 and 15?", "find_book", "add"),
    _one("Set a timer for 3 minutes.", "set_timer", {"minutes": 3}, "get_time"),
    _one("Set a timer for 45 minutes.", "set_timer", {"minutes": 45}, "get_weather", "add"),
    _one("Play the song Hey Jude.", "play_song", {"title": "Hey Jude"}, "find_book"),
    _one("Play Bohemian Rhapsody.", "play_song", {"title": "Bohemian Rhapsody"}, "get_price"),
    _one("Translate cat to Spanish.", "translate", {"word": "cat", "language": "Spanish"},
         "play_song"),
    _one("Translate water to Italian.", "translate", {"word": "water", "language": "Italian"},
         "get_weather", "find_book"),
    _one("Find a book by Mark Twain.", "find_book", {"author": "Mark Twain"}, "play_song"),
    _one("What is the stock price of TSLA?", "get_price", {"symbol": "TSLA"}, "add"),
    _one("Turn on the light in the garage.", "switch_light", {"room": "garage", "on": True},
         "set_timer"),
    _one("Turn off the light in the office.", "switch_light", {"room": "office", "on": False},
         "get_weather", "play_song"),
)  # fmt: skip

_SEVERAL = (
    Task("What is the weather in Paris and in Rome?", ("get_weather",),
         (("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}))),
    Task("What is the time and the weather in Tokyo?", ("get_time", "get_weather"),
         (("get_time", {"city": "Tokyo"}), ("get_weather", {"city": "Tokyo"}))),
    Task("Add 1 and 2, and multiply 3 by 4.", ("add", "multiply"),
         (("add", {"a": 1, "b": 2}), ("multiply", {"a": 3, "b": 4}))),
    Task("Get the prices of AAPL and GOOG.", ("get_price",),
         (("get_price", {"symbol": "AAPL"}), ("get_price", {"symbol": "GOOG"}))),
)  # fmt: skip

_WORDS = (
    Task("Hello! How are you?", ("get_weather",)),
    Task("Thank you very much!", ("get_time",)),
    Task("What is the capital of France?", ("set_timer",)),
    Task("Who wrote Romeo and Juliet?", ("add", "multiply")),
    Task("Tell me a joke.", ("get_price",)),
    Task("What is the chemical symbol for water?", ("play_song",)),
    Task("Write a sentence about the sea.", ("switch_light",)),
    Task("How many days are in a week?", ("translate",)),
    Task("What is your name?", ("send_mail",)),
    Task("Good night!", ("convert_temperature", "get_time")),
)

TASKS = (*_SINGLE, *_CHOSEN, *_SEVERAL, *_WORDS)
