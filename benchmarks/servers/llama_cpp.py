"""Server of llama.cpp by the package xllamacpp, in an environment of its own: MODEL PORT."""

import os
import signal
import sys

import xllamacpp


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.port = sys.argv[1], int(sys.argv[2])
    parameters.n_ctx, parameters.n_parallel = 4096, 1
    parameters.cpuparams.n_threads = os.cpu_count()
    server = xllamacpp.Server(parameters)
    signal.sigwait({signal.SIGTERM})
    del server


main()
