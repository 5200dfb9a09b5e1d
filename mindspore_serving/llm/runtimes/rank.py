"""The process of a rank other than 0.

It loads its part of a model, and computes the steps that rank 0 sends until that closes the
connection.
"""

import argparse
import os
import socket
import sys
from contextlib import suppress
from typing import NoReturn, cast

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.checkpoint.encrypted import set_key
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.expert_counts import experts_of, gather_counts
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.messages import (
    Compute,
    FromStore,
    GatherCounts,
    LoadRank,
    ReleaseBlocks,
    ToRank,
)
from mindspore_serving.llm.parallel.processes import LOST_STATUS
from mindspore_serving.llm.parallel.rank_blocks import answer_request
from mindspore_serving.llm.runtimes import open_rank
from mindspore_serving.llm.step import (
    BestLogits,
    ChoosingRunner,
    EmbeddingRunner,
    RunnerLost,
    StoringRunner,
    Vectors,
)
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready, hello


def main() -> int:
    """Run the process; return its exit status."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--memory", "--local"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--peers", nargs="+", required=True)
    arguments = enter(parser, ignores_signals=True)
    peers = {}
    for peer in arguments.peers:
        rank, _, descriptor = peer.partition("=")
        peers[int(rank)] = socket.socket(fileno=int(descriptor))
    links = Links(arguments.rank, peers, arguments.memory, num_local=arguments.local)
    os.close(arguments.memory)
    return compute(connect(arguments.channel), links)


def compute(stream: socket.socket, links: Links) -> int:
    """Compute what rank 0 sends over `stream` until it closes it; return the exit status."""
    control = BlockingChannel[ToRank](stream, ToRank)
    try:
        control.send(hello(messages))
        _serve(control, links)
    except EOFError:
        return 0
    except (RunnerLost, ConnectionError):
        return LOST_STATUS
    except Exception as error:
        if not isinstance(error, ServingError):
            log.error("rank %d failed", links.rank, exc_info=True)
        with suppress(OSError):
            control.send(Failed(str(error) or repr(error)))
        return 1


def _serve(control: BlockingChannel[ToRank], links: Links) -> NoReturn:
    """Load the model and compute steps.  Raises EOFError when rank 0 has closed the connection."""
    load = control.receive_next()
    assert isinstance(load, LoadRank)
    if load.key:
        set_key(load.key)
    runner = open_rank(load.directory, load.runtime, EngineConfig(**load.config), links)
    control.send(Ready())
    while True:
        message = control.receive_next()
        if isinstance(message, ReleaseBlocks):
            runner.release_blocks(message.blocks)
            continue
        if isinstance(message, FromStore):
            answer_request(cast(StoringRunner, runner), links, message)
            continue
        if isinstance(message, GatherCounts):
            experts = experts_of(runner)
            assert experts is not None
            gather_counts(runner, experts)
            continue
        assert isinstance(message, Compute)
        _compute(runner, links, message)


def _result_of(runner: EmbeddingRunner, message: Compute) -> Vectors | BestLogits:
    """Return what rank 0 has as well; here it is dropped."""
    if message.embeds:
        return runner.embed(message.step())
    if message.best and getattr(runner, "max_best", 0):  # its device may not choose
        return cast(ChoosingRunner, runner).run_best(message.step(), message.best)
    return runner.run(message.step())


def _compute(runner: EmbeddingRunner, links: Links, message: Compute) -> None:
    links.begin(message.number)
    try:
        _result_of(runner, message)
    except ServingError:
        if links.has_exchanged:
            raise
        # rank 0 refuses the step as well


if __name__ == "__main__":
    sys.exit(main())
