"""Importer of the Python files of one directory, always from their current source.

Python's cached bytecode is that of an earlier file if a file of the same length was written in the
same second.
"""

import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import CodeType


class FromSource(SourceFileLoader):
    """Loader that compiles the source at each load."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def compile_all(directory: str) -> None:
    """Use `FromSource` for all imports from `directory`, also of files that appear later."""
    sys.path_importer_cache[directory] = FileFinder(
        directory,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (FromSource, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
