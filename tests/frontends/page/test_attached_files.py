"""Text files and PDF files as attachments, read in the browser."""

import base64
import json

import pytest

from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import answers, ask, bodies, ended, finished, stored

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
ATTACHED = "document.querySelectorAll('#attached li').length"
FAILURE = "document.querySelector('.failure p')?.textContent"
COMPLETIONS = "/v1/chat/completions"


def pdf(*pages: str, extra: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(pages)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {extra}>>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, text in enumerate(pages):
        fonts = "/Resources << /Font << /F1 3 0 R >> >>"
        size = "/MediaBox [0 0 200 200]"
        objects.append(f"<< /Type /Page /Parent 2 0 R {size} {fonts} /Contents {5 + 2 * at} 0 R >>")
        draw = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET" if text else ""
        objects.append(f"<< /Length {len(draw)} >>\nstream\n{draw}\nendstream")
    body = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF"
    return body + (head + trailer).encode()


def attach(page: Browser, name: str, body: bytes, kind: str = "") -> None:
    """Choose a file."""
    encoded = base64.b64encode(body).decode()
    page.evaluate(
        "(() => { const data = new DataTransfer();"
        f"const bytes = Uint8Array.from(atob('{encoded}'), (one) => one.charCodeAt(0));"
        f"data.items.add(new File([bytes], {json.dumps(name)}, {{type: '{kind}'}}));"
        "const one = document.getElementById('pictures'); one.files = data.files;"
        "one.dispatchEvent(new Event('change')); })()"
    )


def sent(page: Browser) -> str:
    return str(bodies(page)[-1]["messages"][-1]["content"])


@pytest.mark.parametrize(
    ("name", "body", "block"),
    [
        ("main.py", b"x = 1\n", "main.py:\n```py\nx = 1\n```"),
        ("notes", "\ufeffgrün\r\n".encode(), "notes:\n```\ngrün\n```"),
        ("win.txt", "你好".encode("utf-16"), "win.txt:\n```txt\n你好\n```"),
        ("doc.md", b"```\nx\n```", "doc.md:\n````md\n```\nx\n```\n````"),
        (
            "logo.svg",
            b"<svg onload='alert(1)'/>",
            "logo.svg:\n```svg\n<svg onload='alert(1)'/>\n```",
        ),
    ],
)
def test_a_text_file_goes_before_the_question(
    page: Browser, name: str, body: bytes, block: str
) -> None:
    answers(page, "yes")
    attach(page, name, body, "image/svg+xml" if name.endswith("svg") else "")
    page.until(f"{ATTACHED} === 1")
    ask(page, "What is it?")
    finished(page)
    assert sent(page) == f"{block}\n\nWhat is it?"
    assert page.text(".message.user .said") == "What is it?"
    page.click(".message.user .file summary")
    page.until("document.querySelector('.message.user .file pre')")
    assert page.evaluate("document.querySelectorAll('.message svg[onload]').length") == 0
    assert [one["name"] for one in stored(page)[0]["files"]] == [name]


def test_the_text_of_a_pdf_goes_before_the_question(page: Browser) -> None:
    answers(page, "yes")
    attach(page, "report.pdf", pdf("First page", "Second page"), "application/pdf")
    page.until(f"{ATTACHED} === 1 || {FAILURE}")
    page.click("#text")
    page.press("Enter")  # a file alone is a question
    finished(page)
    assert sent(page) == "report.pdf:\n```\nFirst page\n\nSecond page\n```"
    hosts = {one["url"].split("/")[2] for one in page.requests if one["url"].startswith("http")}
    assert len(hosts) == 1
    assert page.text("#list .title") == "report.pdf"


def test_a_script_in_a_pdf_does_not_run(page: Browser) -> None:
    script = "/OpenAction << /S /JavaScript /JS (document.title = 'owned'; app.alert(1)) >> "
    attach(page, "a.pdf", pdf("Hello", extra=script), "application/pdf")
    page.until(f"{ATTACHED} === 1 || {FAILURE}")
    assert page.evaluate("document.title") == "MindSpore Serving"


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("a.bin", b"\0\1\2", "a.bin is not a text in UTF-8, a PDF or an image."),
        ("a.txt", b"\xff\xfa\xff", "a.txt is not a text in UTF-8, a PDF or an image."),
        ("a.txt", b" \n", "a.txt is empty."),
        ("a.txt", b"a" * 1_000_001, "a.txt has 1.0 MB; it may have at most 1 MB."),
        ("a.pdf", b"%PDF-1.4 nothing else", "a.pdf cannot be read as a PDF: "),
        ("a.pdf", pdf(""), "a.pdf has no text: its pages may be scanned images."),
    ],
)
def test_why_a_file_is_not_attached_is_said(
    page: Browser, name: str, body: bytes, words: str
) -> None:
    attach(page, name, body)
    page.until(f"{FAILURE}?.startsWith({json.dumps(words)})")
    assert page.evaluate(ATTACHED) == 0


def test_an_unanswered_file_stays_in_the_input(page: Browser) -> None:
    page.answer(COMPLETIONS, 400, '{"error": {"message": "the prompt is too long"}}')
    attach(page, "a.txt", b"x")
    page.until(f"{ATTACHED} === 1")
    ask(page, "Why?")
    ended(page)
    assert page.text(".failure") == "the prompt is too long"
    assert page.evaluate(ATTACHED) == 1
    page.excuse()  # Chromium logs the status
