"""Pages of PDF files as pictures or texts, and files of text.  Knows no request and no model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.extras import command
from mindspore_serving.llm.images.video import check_deadline

EDGE = 1280  # pixels of the longer edge of a page's picture, whatever size the page claims
_HEAD = 1024  # bytes before which a PDF file begins
_lock = threading.Lock()  # PDFium is not for several threads


class DocumentLimits(Protocol):
    """Limit of one document: its pages."""

    @property
    def max_document_pages(self) -> int: ...


def is_pdf(file: bytes) -> bool:
    """Return whether a file is a PDF."""
    return b"%PDF-" in file[:_HEAD]


def read_text(file: bytes) -> str:
    """Return the text of a file that is no PDF.  Raises InvalidInputs."""
    encoding = "utf-16" if file[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = file.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidInputs("is neither a PDF nor a text in UTF-8: send it as one of them")
    return text


def render_pages(file: bytes, limits: DocumentLimits, deadline: float) -> Iterator[Any]:
    """Iterate over the pages of a PDF as images.

    Raises InvalidInputs, whose message follows the file's name: too many pages, a broken file, one
    with a password.
    """
    with _opened(file, limits) as (pdf, error_kind):
        for page in _pages(pdf, deadline, error_kind):
            longer = max(page.get_size())
            if not longer > 0:
                raise InvalidInputs("is broken: it has a page without size")
            yield page.render(scale=EDGE / longer).to_pil().convert("RGB")


def extract_texts(file: bytes, limits: DocumentLimits, deadline: float) -> list[str]:
    """Return the texts of the pages of a PDF.  Raises InvalidInputs as `render_pages` does."""
    with _opened(file, limits) as (pdf, error_kind):
        return [
            page.get_textpage().get_text_bounded() for page in _pages(pdf, deadline, error_kind)
        ]


@contextmanager
def _opened(file: bytes, limits: DocumentLimits) -> Iterator[tuple[Any, type[Exception]]]:
    try:
        import pypdfium2
    except ModuleNotFoundError:
        text = f"is a PDF, which this server cannot read; {command('media')}"
        raise InvalidInputs(text) from None
    with _lock:
        try:
            pdf = pypdfium2.PdfDocument(file)
        except pypdfium2.PdfiumError as error:
            problem = "has a password" if "assword" in str(error) else "is broken or truncated"
            raise InvalidInputs(problem) from None
        try:
            pdf.init_forms()  # what people filled in is drawn
            count, limit = len(pdf), limits.max_document_pages
            if count > limit:
                raise InvalidInputs(
                    f"has {count:,} pages, expected at most {limit} (max_document_pages)"
                )
            yield pdf, pypdfium2.PdfiumError
        finally:
            pdf.close()


def _pages(pdf: Any, deadline: float, error_kind: type[Exception]) -> Iterator[Any]:
    """Iterate over the pages, each closed after its turn."""
    for index in range(len(pdf)):
        check_deadline(deadline)
        try:
            page = pdf[index]
        except error_kind as error:
            raise InvalidInputs(f"is broken: page {index + 1}: {str(error)[:200]}") from None
        try:
            yield page
        finally:
            page.close()
