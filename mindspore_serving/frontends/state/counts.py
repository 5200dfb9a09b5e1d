"""Counts in the stored state, which survive a restart; a database has those of several servers."""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from mindspore_serving.frontends.state.database import Database, PageRequest, Record
from mindspore_serving.frontends.state.store import StateStore

KIND = "count"
KEPT_SECONDS = 2 * 86_400
MAX_HOLDERS = 1000  # starts of servers on a day


class StateCounts:
    """Counts by name, which each server writes for itself."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def exchange(self, rows: Mapping[str, bytes]) -> Mapping[str, Sequence[bytes]]:
        """Write the counts of this server but empty ones; return those of other servers.

        Those of this server before its start are of another one.  Raises ServingError.
        """
        return await self._store.run(partial(self._exchange, rows))

    def _exchange(
        self, rows: Mapping[str, bytes], database: Database
    ) -> dict[str, Sequence[bytes]]:
        answers: dict[str, Sequence[bytes]] = {}
        now = int(time.time())
        for name, text in rows.items():
            record_id = f"{KIND}-{name}-{self._store.holder}"
            records = database.page(KIND, name, PageRequest(MAX_HOLDERS))
            if text and any(record.id == record_id for record in records):
                database.replace(record_id, text, is_open=False)
            elif text:
                database.add(Record(record_id, KIND, name, now, text, now + KEPT_SECONDS))
            answers[name] = [record.body for record in records if record.id != record_id]
        return answers
