"""The page's files over HTTP: only they, with headers that let nothing else in."""

import hashlib
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from mindspore_serving.frontends import page

STATIC = Path(page.__file__).parent / "static"
NAMES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*.*"))
LICENCES = (
    "Permission is hereby granted",
    "Redistribution and use in source and binary forms",
    "Apache License",
)
OWN = [name for name in NAMES if not name.startswith("vendor/")]


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(
        Starlette(routes=[Route("/", page.show_page), Route("/page/{name:path}", page.show_file)])
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_its_content_type(client: TestClient, name: str) -> None:
    reply = client.get(f"/page/{name}")
    assert reply.status_code == 200
    if name != "page.html":  # to which the links to its modules are added
        assert reply.content == (STATIC / name).read_bytes()
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg"}
    kind = {**kinds, "txt": "text/plain", "woff2": "font/woff2"}[name.rpartition(".")[2]]
    assert reply.headers["content-type"].startswith(kind)
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_page_may_load_and_call_nothing_but_its_own_server(client: TestClient) -> None:
    policy = client.get("/").headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["frame-ancestors"] == "'none'"
    assert set(rules.values()) == {"'none'", "'self'", "'script'"}
    assert rules["require-trusted-types-for"] == "'script'"


@pytest.mark.parametrize("name", OWN)
def test_no_file_names_another_host(name: str) -> None:
    text = (STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z][\w.-]*\.\w+", text) == []


def test_the_page_names_all_its_modules_so_that_none_waits_for_another(client: TestClient) -> None:
    named = set(re.findall(r'modulepreload" href="page/([^"]+)"', client.get("/").text))
    imported = {
        str((STATIC / name).parent.joinpath(found).resolve().relative_to(STATIC))
        for name in named
        for found in re.findall(r'^import .*"(\..*)";', (STATIC / name).read_text(), re.MULTILINE)
    }
    assert imported | {"page.js"} == named


def test_vendored_files_have_their_licences() -> None:
    vendored = [STATIC / name for name in NAMES if name.startswith("vendor/")]
    folders = {path.parent for path in vendored if path.parent.name != "languages"}
    assert len(folders) == 4
    for folder in folders:
        (licence,) = folder.glob("*.license.txt")
        assert any(words in licence.read_text() for words in LICENCES), folder


def test_vendored_files_are_those_of_the_pinned_packages() -> None:
    lines = (Path(__file__).parent / "vendor.sha256").read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split("  ") for line in lines)}
    names = [name for name in NAMES if name.startswith("vendor/")]
    assert {f"vendor/{name}" for name in pinned} == set(names)
    for name, digest in pinned.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_libraries_that_few_need_do_not_load_with_the_page(client: TestClient) -> None:
    named = re.findall(r'modulepreload" href="page/vendor/([^"]+)"', client.get("/").text)
    assert named == ["marked.js"]


def test_unchanged_files_are_answered_with_304(client: TestClient) -> None:
    tag = client.get("/").headers["etag"]
    again = client.get("/", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["none.js", "__init__.py", "..%2f__init__.py", "%2e%2e", ""])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize(
    ("accept", "is_browser"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("*/*", False),
        ("application/json", False),
        (None, False),
    ],
)
def test_a_browser_is_known_by_its_accept_header(accept: str | None, is_browser: bool) -> None:
    seen = []

    def look(request):
        seen.append(page.wants_page(request))
        return page.show_page(request)

    client = TestClient(Starlette(routes=[Route("/", look)]))
    client.headers.pop("accept")
    client.get("/", headers={"accept": accept} if accept else {})
    assert seen == [is_browser]
