"""A foreign program as a child: its standard input and output are the channel to the parent.

The program keeps the lifeline, so the kernel kills it, and what it starts, when the parent ends.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence

from mindspore_serving.process.child import Program
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.entry import tie_to_parent

# Variables that the program inherits; others of the parent may be secrets.
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


def to_program(
    command: Sequence[str], variables: Mapping[str, str], directory: str | None, log: ChildLog
) -> Program:
    """Return the program of a command; `log` gets its standard error."""
    words = json.dumps([[*command], [*_INHERITED, *variables], directory])
    return Program(
        "mindspore_serving.process.command",
        [words],
        variables=dict(variables),
        log=log,
        channel=socket.SOCK_STREAM,
    )


def main() -> None:
    """Replace this process by the program, whose standard input and output are the channel."""
    words, _, address = tie_to_parent(sys.argv[1:])
    command, names, directory = json.loads(words)
    channel = int(address.removeprefix("fd:"))
    os.dup2(channel, 0)
    os.dup2(channel, 1)
    os.close(channel)
    variables = {name: os.environ[name] for name in names if name in os.environ}
    try:
        if directory is not None:
            os.chdir(directory)
        os.execvpe(command[0], command, variables)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error}")


if __name__ == "__main__":
    main()
