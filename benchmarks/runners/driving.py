"""Drives a language-model engine through a trace, and says when every token came.

The same for every engine, and in the environment of each: the standard library alone.  A process
prints one JSON line when its model is loaded, then one for each task that it reads from stdin:

    {"conversations": [{"arrival": seconds, "turns": [[new token ids, tokens wanted], ...]}, ...]}

A turn's prompt is everything said before and its new tokens; it begins when the answer before it
is complete, the first one on its arrival.  The reply has the seconds since the task's start:

    {"turns": [[prompt tokens, begun, first token, last token], ...], one for each conversation,
     "steps": [[end, tokens that came], ...],
     "computing": [seconds of each step inside the model, ...],
     "spent": [processor seconds of the process until the end of each step, ...],
     "said": [all tokens of a conversation, ...]}

An engine whose attribute `computing` counts those seconds gets figures there, others zeros.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol


class Engine(Protocol):
    """What a runner wraps its engine into.  A request is known by a number of the driver's."""

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        """Queue a request for exactly `max_tokens`, greedy, whatever tokens come."""
        ...

    def step(self) -> Iterable[tuple[int, list[int]]]:
        """Compute something; the new tokens by request, each as soon as it can be known."""
        ...


@dataclass(slots=True)
class Conversation:
    arrival: float
    turns: list[tuple[list[int], int]]
    said: list[int] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    wanted: int = 0  # tokens that its open turn still lacks

    def next_prompt(self, now: float) -> tuple[list[int], int]:
        new, self.wanted = self.turns[len(self.times)]
        self.said += new
        self.times.append([len(self.said), now, 0.0, 0.0])
        return self.said[:], self.wanted

    def take(self, tokens: list[int], now: float) -> bool:
        """Whether the turn is complete."""
        times = self.times[-1]
        times[2] = times[2] or now
        self.said += tokens
        self.wanted -= len(tokens)
        times[3] = now
        return self.wanted <= 0


def run(engine: Engine, task: Any) -> dict[str, Any]:
    """One task from its first arrival to its last token.  See the module for the reply."""
    waiting = [Conversation(**each) for each in task["conversations"]]
    talks, steps, computing, spent, is_open = waiting[:], [], [], [], set()
    waiting.sort(key=lambda talk: -talk.arrival)
    numbers = {id(talk): number for number, talk in enumerate(talks)}
    began = time.perf_counter()
    while waiting or is_open:
        now = time.perf_counter() - began
        while waiting and waiting[-1].arrival <= now:
            talk = waiting.pop()
            is_open.add(numbers[id(talk)])
            engine.add(numbers[id(talk)], *talk.next_prompt(max(talk.arrival, 0.0)))
        if not is_open:
            time.sleep(min(0.001, waiting[-1].arrival - now))
            continue
        computed = getattr(engine, "computing", 0.0)
        came = list(engine.step())
        computing.append(getattr(engine, "computing", 0.0) - computed)
        spent.append(time.process_time())
        now = time.perf_counter() - began
        steps.append([now, sum(len(tokens) for _, tokens in came)])
        for number, tokens in came:
            talk = talks[number]
            if not talk.take(tokens, now):
                continue
            if len(talk.times) < len(talk.turns):
                engine.add(number, *talk.next_prompt(now))
            else:
                is_open.discard(number)
    return {
        "turns": [talk.times for talk in talks],
        "steps": steps,
        "computing": computing,
        "spent": spent,
        "said": [talk.said for talk in talks],
    }


def memory() -> dict[str, int]:
    """Bytes of this process: now (in all, and what of it is pages of files), and at its peak."""
    kinds = {"VmRSS": "rss", "RssFile": "files", "RssAnon": "own"}
    found = {}
    with open("/proc/self/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in kinds:
                found[kinds[name]] = int(value.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**found, "peak": peak}


def serve(load: Callable[[list[str]], tuple[Engine, dict[str, Any]]]) -> None:
    """Load with the command line's arguments, say so, and do tasks until stdin ends.

    What libraries print goes to stderr: stdout is for the replies.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine, about = load(sys.argv[1:])

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    reply({**about, "memory": memory()})
    for line in sys.stdin:
        task = json.loads(line)
        reply({**run(engine, task), "memory": memory()})
