"""Loading of object files that LLVM has written for x86-64, without LLVM's library.

That takes 50 MB and 0.1 s, to link some kilobytes.  In code for the process that compiles it,
addresses have 64 bits, so that there are only two kinds of relocation: the value of a symbol, and
its distance.  The format is that of the System V ABI, https://gitlab.com/x86-psABIs/x86-64-ABI.
"""

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import ServingError

_SECTIONS_AT, _COUNT_AT = 40, 60  # where the header has the sections' offset, and their number
_SECTION = np.dtype(
    [(name, "<u4") for name in ("name", "type")]
    + [(name, "<u8") for name in ("flags", "address", "offset", "size")]
    + [(name, "<u4") for name in ("link", "info")]
    + [(name, "<u8") for name in ("align", "entry")]
)
_SYMBOL = np.dtype([("name", "<u4"), ("info", "<u2"), ("section", "<u2"), ("value", "<u8", 2)])
_RELOCATION = np.dtype([("at", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_CODE, _SYMBOLS, _RELOCATIONS, _ZEROS = 1, 2, 4, 8  # types of sections; zeros are in no file
_WRITES, _IN_MEMORY = 1, 2  # flags of sections
_VALUE, _DISTANCE = 1, 24  # R_X86_64_64 and R_X86_64_PC64
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC


class ObjectFile:
    """An object file: its sections, symbols and relocations."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        (begin,) = np.frombuffer(content, "<u8", 1, _SECTIONS_AT)
        (count,) = np.frombuffer(content, "<u2", 1, _COUNT_AT)
        self.sections = np.frombuffer(content, _SECTION, count, begin)
        (table,) = self.sections[self.sections["type"] == _SYMBOLS]
        self.symbols = self._rows(table, _SYMBOL)
        begin, names = self.sections[table["link"]]["offset"], self.symbols["name"]
        self.names = [self._text(int(begin) + at) for at in names.tolist()]

    @property
    def undefined(self) -> list[str]:
        """Names of the symbols that the code needs from elsewhere."""
        is_undefined = (self.symbols["section"] == 0) & (self.symbols["name"] > 0)
        return [self.names[at] for at in np.flatnonzero(is_undefined).tolist()]

    def relocations(self) -> list[tuple[int, npt.NDArray[np.void]]]:
        """Return, for each section with code, its offset and its relocations.

        Those of tables that describe code to debuggers are left out.
        """
        tables = []
        for section in self.sections[self.sections["type"] == _RELOCATIONS]:
            target = self.sections[section["info"]]
            if target["type"] == _CODE and int(target["flags"]) & _IN_MEMORY:
                tables.append((int(target["offset"]), self._rows(section, _RELOCATION)))
        return tables

    def _rows(self, section: np.void, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
        count = int(section["size"]) // kind.itemsize
        return np.frombuffer(self.content, kind, count, int(section["offset"]))

    def _text(self, begin: int) -> str:
        return self.content[begin : self.content.index(b"\0", begin)].decode()


class MachineCode:
    """Functions of an object file, in memory that may be executed and not written.

    Raises ServingError for code that this loader cannot link.
    """

    def __init__(self, content: bytes) -> None:
        file = ObjectFile(content)
        flags, kinds = file.sections["flags"], file.sections["type"]
        if (flags & _WRITES).any() or (kinds == _ZEROS).any():
            raise ServingError("machine code has variables, which the loader does not link")
        # The file is loaded as it is: its sections are aligned in it.
        self._memory = mmap.mmap(-1, len(content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory[:] = content
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        values = self._values(file)
        for begin, rows in file.relocations():
            self._relocate(begin, rows, values)
        self._addresses = dict(zip(file.names, values, strict=True))
        if ctypes.CDLL(None, use_errno=True).mprotect(
            ctypes.c_void_p(self._begin), ctypes.c_size_t(len(content)), _EXECUTABLE
        ):
            raise ServingError(
                "the system does not let this process execute code that it has loaded: "
                f"error {ctypes.get_errno()} of mprotect"
            )

    def address(self, symbol: str) -> int:
        """Return the address of a function."""
        return self._addresses[symbol]

    def _values(self, file: ObjectFile) -> list[int]:
        """Return the address of each symbol; 0 of those that name files."""
        values = []
        for name, symbol in zip(file.names, file.symbols, strict=True):
            section, value = int(symbol["section"]), 0
            if section == 0 and name:
                value = _library_address(name)
            elif section < len(file.sections):
                value = self._begin + int(file.sections[section]["offset"])
                value += int(symbol["value"][0])
            values.append(value)
        return values

    def _relocate(self, begin: int, rows: npt.NDArray[np.void], values: list[int]) -> None:
        for row in rows:
            at, kind = begin + int(row["at"]), int(row["kind"])
            if kind not in (_VALUE, _DISTANCE):
                raise ServingError(f"machine code has a relocation of kind {kind}, unknown here")
            value = values[row["symbol"]] + int(row["addend"])
            if kind == _DISTANCE:
                value -= self._begin + at
            self._memory[at : at + 8] = (value % 2**64).to_bytes(8, "little")


def _library_address(name: str) -> int:
    """Return the address of a function of the C library.  Raises ServingError if it has none."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        raise ServingError(f"machine code needs {name}, unknown here")
    return ctypes.cast(function, ctypes.c_void_p).value or 0
