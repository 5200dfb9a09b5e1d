"""Start the agents of a configuration file of llm-serving; stays up until stopped.

An agent runs one rank of a model.  They are wanted where the file has the key `runtime: agents`;
without it start.py starts the ranks by itself, and this script says so and has nothing more to do.
"""

import argparse
import os
import signal
import threading
from queue import Queue

from mindspore_serving.agent.agent_multi_post_method import startup_agents
from start import DEFAULT

from mindspore_serving.errors import ServingError
from mindspore_serving.server.llm_config import LlmConfig, read_llm_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default=str(DEFAULT), help="X.yaml or serving_config.py")
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        config = read_llm_config(parser.parse_args().config)
        if config.runtime == "agents":
            start_agents(config)
        else:
            agents = ", ".join(config.agents) or "no port"
            ranks = "one rank" if config.ranks == 1 else f"{config.ranks} ranks"
            print(f"{config.name} has {ranks}, which start.py runs; nothing listens on {agents}")
    except ServingError as error:
        raise SystemExit(str(error)) from None
    print("all agents started", flush=True)
    stopped.wait()
    os._exit(0)  # and the agents with this process


def start_agents(config: LlmConfig) -> None:
    """Returns when all are ready.  Raises ServingError if they cannot start."""
    model, ranks = config.directory, config.ranks
    own = [str(model / f"rank_{rank}") for rank in range(ranks)] if ranks > 1 else [str(model)]
    argmax, topk = str(model / "argmax.mindir"), str(model / "topk.mindir")
    started: Queue[int | ServingError] = Queue()
    startup_agents(None, None, None, ranks, own, own, argmax, topk, started, options=config.options)
    for _ in range(ranks):
        rank = started.get()
        if isinstance(rank, ServingError):
            raise rank
        print(f"agent {rank} started", flush=True)


if __name__ == "__main__":
    main()
