"""The process of a vLLM server: runs its module, tied to the life of the worker.

Imports nothing that vLLM or its plugins must import first.
"""

import runpy
import signal
import sys

from mindspore_serving.process.entry import tie_to_parent


def main() -> None:
    """Run the module that the first argument names, with the rest as its command line."""
    module, *arguments = tie_to_parent(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):  # which workers may ignore
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
