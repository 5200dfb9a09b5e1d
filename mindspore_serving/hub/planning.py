"""Plan of a download: the revision that a name means now, and the files to fetch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import Selection, entry_of, select
from mindspore_serving.hub.source import Listing, Source


@dataclass(frozen=True, slots=True)
class PlannedDownload:
    """Files of a model at a pinned revision; the scheme of `reference` is known."""

    reference: Reference
    listing: Listing
    selection: Selection
    source: Source = field(repr=False)

    def fetch(self, report: Callable[[int], None]) -> Path:
        """Download what is missing; return the path to serve.

        `report` gets increments of bytes, from any thread; an error that it raises stops the
        download. Raises ServingError.
        """
        path = self.source.fetch(self.reference, self.listing, self.selection.files, report)
        if self.listing.is_whole:
            return entry_of(path, self.reference.file)
        entry = self.selection.entry
        return path / entry if entry and path.is_dir() else path


def plan_download(reference: Reference, source: Source) -> PlannedDownload:
    """Ask `source` for the files of a model.  Raises ServingError as `Source.list_files`."""
    listing = source.list_files(reference)
    selection = (
        Selection(listing.files)
        if listing.is_whole
        else select(listing.files, reference.file, str(reference))
    )
    return PlannedDownload(reference, listing, selection, source)
