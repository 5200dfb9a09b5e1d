"""Imports the Python files of one directory as they are now.

Bytecode that Python keeps is that of an earlier file if one that is as long was written in the same
second.  Knows nothing of what is imported.
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
    """Compiles the source in each load."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def compile_all(directory: str) -> None:
    """Use `FromSource` for whatever is imported from `directory`, also what appears there later."""
    sys.path_importer_cache[directory] = FileFinder(
        directory,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (FromSource, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
