"""Code and formulas in answers: coloured and drawn by libraries that are loaded when needed."""

import json

import pytest

from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import answers, ask, finished

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
FILES = "performance.getEntriesByType('resource').map((one) => one.name)"
OWNED = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def loaded(page: Browser) -> list[str]:
    """Libraries that the page has loaded, but that of Markdown."""
    names = [name.split("/page/vendor/")[-1] for name in page.evaluate(FILES) if "/vendor/" in name]
    return sorted(name for name in names if name != "marked.js")


def show(page: Browser, text: str) -> None:
    answers(page, *(text[at : at + 7] for at in range(0, len(text), 7)))
    ask(page, "Show me")
    finished(page)


def test_an_answer_of_words_loads_no_library(fresh: Browser) -> None:
    show(fresh, "It costs $5 or $6, and `x` is a name.")
    assert loaded(fresh) == []


def test_code_is_coloured_and_stays_the_same_text(fresh: Browser) -> None:
    code = 'def double(x: int) -> str:\n    return f"<b>{2 * x}</b>"  # twice'
    show(fresh, f"```py\n{code}\n```")
    fresh.until("document.querySelector('pre .in-keyword')")
    assert fresh.evaluate("document.querySelector('pre code').textContent") == code
    assert fresh.text("pre .in-keyword") == "def"
    assert fresh.text("pre .in-comment") == "# twice"
    assert loaded(fresh) == ["highlight/core.js", "highlight/languages/python.js"]


def test_code_of_no_known_language_stays_plain(fresh: Browser) -> None:
    languages = ("", "cobol", "../../page", "constructor")
    show(fresh, "\n\n".join(f"```{language}\nx = 1\n```" for language in languages))
    blocks = "[...document.querySelectorAll('.log pre code')].map((one) => one.innerText)"
    assert fresh.evaluate(blocks) == ["x = 1"] * 4
    assert loaded(fresh) == []


def test_formulas_are_drawn(fresh: Browser) -> None:
    show(fresh, r"So $x^2$ and \(\frac{1}{2}\):" + "\n\n$$\\int_0^1 f'(x)\\,dx$$\n\n\\[a+b\\]")
    fresh.until("document.querySelectorAll('.formula math').length === 4")
    assert fresh.evaluate("document.querySelectorAll('p.formula math[display=block]').length") == 2
    source = fresh.evaluate("document.querySelector('.formula annotation').textContent")
    assert source == "x^2"
    assert {name.partition("/")[0] for name in loaded(fresh)} == {"temml"}


def test_the_parts_of_a_page_are_coloured_by_their_languages(page: Browser) -> None:
    code = "<style>p { color: red }</style><script>let x = 1;</script>"
    show(page, f"```html\n{code}\n```")
    page.until("document.querySelector('pre .in-keyword')")
    assert page.evaluate("document.querySelector('pre code').textContent") == code
    assert page.text("pre .in-keyword") == "let"
    assert page.evaluate("document.querySelectorAll('.log style, .log script').length") == 0


@pytest.mark.parametrize(
    "wrong",
    [
        r"$\frac{1$",
        r"$\unknown{x}$",
        r"$\href{javascript:alert(1)}{x}$",
        r"$\includegraphics{https://web.invalid/x.png}$",
        r"$\def\a{\a\a}\a$",
        "$" + "{" * 1500 + "x" + "}" * 1500 + "$",
        "$" + "x+" * 3000 + "x$",
    ],
)
def test_text_that_is_no_formula_stays_unchanged(page: Browser, wrong: str) -> None:
    show(page, f"$y$ and {wrong}")
    page.until("document.querySelector('.formula math')")
    shown = page.evaluate("document.querySelectorAll('.formula')[1].textContent")
    links = page.evaluate("document.querySelectorAll('.markdown a, .markdown img').length")
    assert links == 0
    assert page.evaluate("document.title") == "MindSpore Serving"
    if len(wrong) < 100 and "{javascript" not in wrong and "graphics" not in wrong:
        assert shown == wrong


@pytest.mark.parametrize(
    "hostile",
    [
        f"```html\n{OWNED}\n```",
        f'```js"onload="alert(1)\n{OWNED}\n```',
        f"```xml\n<!--{OWNED}",
        rf"$\text{{{OWNED}}}$",
        rf"$$\class{{x}}{{{OWNED}}}$$",
        r"$\htmlStyle{background: url(https://web.invalid)}{x}$",
        r"$\style{background-image: url(javascript:alert(1))}{x}$",
    ],
)
def test_code_and_formulas_run_and_load_nothing(page: Browser, hostile: str) -> None:
    show(page, f"$y$\n\n{hostile}")
    page.until("document.querySelector('.formula math')")
    page.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(done)))")
    assert page.evaluate("document.title") == "MindSpore Serving"
    outside = (
        "document.querySelectorAll('.log img, .log script, .log [onerror], .log [style*=url]')"
    )
    assert page.evaluate(f"{outside}.length") == 0
    assert not [one for one in page.requests if "web.invalid" in json.dumps(one["url"])]


def test_an_answer_is_readable_where_the_libraries_do_not_come(fresh: Browser) -> None:
    fresh.answer("/core.js", 404, "", "text/plain")
    fresh.answer("/temml.js", 404, "", "text/plain")
    show(fresh, "```py\nx = 1\n```\n\n$x^2$")
    fresh.until("performance.getEntriesByType('resource').some((one) => /temml.js/.test(one.name))")
    assert fresh.text("pre code") == "x = 1"
    assert fresh.text(".formula") == "$x^2$"
    fresh.complaints.clear()  # Chromium logs the status
