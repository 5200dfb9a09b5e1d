"""Stands where the agents of llm-serving stood; stays up until stopped.

An agent ran one rank of a model.  A model of one rank is run by the worker that start.py starts, so
this script checks the configuration, says so, and has nothing more to do.
"""

import argparse
import signal
import threading

from start import DEFAULT

from mindspore_serving.errors import ServingError
from mindspore_serving.server.llm_config import read_llm_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default=str(DEFAULT), help="X.yaml or serving_config.py")
    try:
        config = read_llm_config(parser.parse_args().config)
    except ServingError as error:
        raise SystemExit(str(error)) from None
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    agents = ", ".join(config.agents) or "no port"
    print(f"{config.name} has one rank, which start.py runs; nothing listens on {agents}")
    print("all agents started", flush=True)
    stopped.wait()


if __name__ == "__main__":
    main()
