"""Calls of a web page in Chromium, by HTTP/2 over TLS, to its own server and to another."""

import json
from contextlib import closing
from dataclasses import dataclass

import pytest

from mindspore_serving import tls
from mindspore_serving.frontends.origins import OriginPolicy
from tests.e2e.authority import Authority
from tests.frontends.grpc.interop.service import Interop
from tests.frontends.page.browser import CHROMIUM, Browser

UNARY = "/grpc.testing.TestService/UnaryCall"
CONNECT = """
const answer = await fetch(url, {method: 'POST', body: '{"responseSize": 3}',
    headers: {'content-type': 'application/json', 'connect-protocol-version': '1'}})
return await answer.text()
"""
GRPC_WEB = r"""
const answer = await fetch(url, {method: 'POST', body: new Uint8Array([0, 0, 0, 0, 2, 16, 3]),
    headers: {'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1',
        'grpc-timeout': '9S'}})
const data = new Uint8Array(await answer.arrayBuffer())
return [answer.headers.get('content-type'), ...data].join(' ')
"""


@dataclass(frozen=True)
class Files:
    """TLS of a server without clients' certificates."""

    certificate: str
    private_key: str
    custom_ca: str | None = None
    verify_client: bool = False


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with Browser(tmp_path_factory.mktemp("profile")) as made:
        made.call("Security.setIgnoreCertificateErrors", ignore=True)
        yield made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    files = Files(*Authority(tmp_path_factory.mktemp("tls"), "authority").issue("server"))

    def make():
        return tls.Certificates(files, tls.read(files))

    return make


@pytest.fixture(scope="module")
def own(background, certificates):
    policy = OriginPolicy("127.0.0.1")
    with closing(Interop(background, origins=policy, tls=certificates())) as made:
        yield made


def call(browser, page, server, program):
    """What a program of a page says, whose `url` is that of a method of the server."""
    browser.open(f"https://{page.address}/livez")
    url = json.dumps(f"https://{server.address}{UNARY}")
    script = f"(async () => {{ const url = {url}; {program} }})()"
    browser.evaluate(f"window.said = null; {script}.then(t => said = t, e => said = 'failed ' + e)")
    browser.until("window.said !== null")
    return browser.evaluate("said")


ANSWERS = {
    CONNECT: '{"payload": {"body": "AAAA"}}',
    GRPC_WEB: "application/grpc-web+proto 0 0 0 0 7 10 5 18 3 0 0 0 128 0 0 0 16 "
    + " ".join(map(str, b"grpc-status: 0\r\n")),
}
every_program = pytest.mark.parametrize("program", ANSWERS, ids=("connect", "grpc-web"))


@every_program
def test_a_page_calls_its_own_server_by_http2(browser, own, program):
    assert call(browser, own, own, program) == ANSWERS[program]
    protocols = "performance.getEntriesByType({}).map(each => each.nextHopProtocol)"
    for kind in ("navigation", "resource"):
        assert {*browser.evaluate(protocols.format(repr(kind)))} == {"h2"}


@every_program
def test_a_page_calls_another_server_that_allows_its_origin(
    background, browser, own, certificates, program
):
    policy = OriginPolicy("127.0.0.1", (), [f"https://{own.address}"])
    with closing(Interop(background, origins=policy, tls=certificates())) as other:
        assert call(browser, own, other, program) == ANSWERS[program]


@every_program
def test_a_page_cannot_call_a_server_that_does_not_allow_its_origin(
    background, browser, own, certificates, program
):
    policy = OriginPolicy("127.0.0.1")
    with closing(Interop(background, origins=policy, tls=certificates())) as other:
        assert call(browser, own, other, program).startswith("failed TypeError")
        assert other.service.num_calls == 0
        browser.excuse()
