"""Which server a fault is done to: the one of the fault before, if that is well and of its site."""

from pathlib import Path

from tests.chaos.fault import Fault, Result, run
from tests.chaos.recovery import SERVABLES, warm_up
from tests.chaos.server import Server


class Shared:
    """Runs faults one after another, each below a directory of its own in `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._server: Server | None = None
        self._warm: list[list[int]] = []  # its workers that did a little of everything
        self._count = 0

    def run(self, fault: Fault) -> Result:
        """Measure `fault`, on a server that is well."""
        server = self._server
        if server is None or fault.is_start or server.site != fault.site:
            self.close()
            server = self._server = self._start(fault)
        try:
            is_measured = not (fault.is_start or fault.must.ends)
            if is_measured and _workers(server) != self._warm:
                warm_up(server)  # what a new worker keeps for good does not count as lost
                self._warm = _workers(server)
            result = run(fault, server)
        except BaseException:  # nobody knows in which state it is
            self.close()
            raise
        is_over = fault.must.ends or fault.must.gone
        if result.problems or is_over or not _is_whole(server):
            self.close()
        return result

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _start(self, fault: Fault) -> Server:
        self._count += 1
        directory = self._place / str(self._count)
        directory.mkdir()
        server = Server(fault.site, directory, is_held=fault.is_start)
        try:
            if not fault.is_start:
                server.wait_until_started()
        except BaseException:
            server.close()
            raise
        return server


def _workers(server: Server) -> list[list[int]]:
    return [server.workers(name) for name in SERVABLES]


def _is_whole(server: Server) -> bool:
    """Whether it has all its workers."""
    counts = {name: len(server.workers(name)) for name in SERVABLES}
    return counts == {"toy": server.site.toy_workers, "good": 1, "tiny": 1}
