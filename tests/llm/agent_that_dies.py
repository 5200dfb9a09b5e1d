"""The process of agents that is killed before one of them is ready."""

import os
import signal

if __name__ == "__main__":
    os.kill(os.getpid(), signal.SIGKILL)
