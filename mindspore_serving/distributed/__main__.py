"""`python -m mindspore_serving.distributed`: the process of an agent, started by a script.

The kernel ends it, and what it has started, with the script; it ends itself with the worker.
"""

import argparse
import os
import signal
import sys

from mindspore_serving import log
from mindspore_serving.distributed import agent
from mindspore_serving.distributed.setup import AgentFailed, AgentReady, AgentSetup
from mindspore_serving.errors import ServingError, printable
from mindspore_serving.ipc.channel import BlockingChannel, connect
from mindspore_serving.isolation import telemetry
from mindspore_serving.isolation.lifeline import end_with


def main() -> int:
    telemetry.turn_off()
    parser = argparse.ArgumentParser(prog="python -m mindspore_serving.distributed")
    parser.add_argument("--channel", required=True, help="fd:N, to the script")
    parser.add_argument("--lifeline", required=True, type=int, help="closes with the script")
    parser.add_argument("--name", help="shown in process lists only")
    arguments = parser.parse_args()
    end_with(arguments.lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the script, which ends us
    script: BlockingChannel[AgentSetup] = BlockingChannel(connect(arguments.channel), AgentSetup)
    try:
        (setup,) = script.receive(wait=True)
        models = agent.load(setup)
        connection = agent.join(setup, models)
    except Exception as error:
        if not isinstance(error, ServingError):
            log.error("an agent could not start", exc_info=True)
        script.send(AgentFailed(printable(str(error)) or repr(error)))
        return 1
    script.send(AgentReady())
    agent.serve(connection, models)
    return 0


if __name__ == "__main__":
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # a user's directory must not shadow what models import
    sys.exit(main())
