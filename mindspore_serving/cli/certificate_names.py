"""Host by which clients can verify the certificate of a server.

The certificate is read by a handshake in memory, as the standard library parses no files.
"""

import ssl

_MAX_FLIGHTS = 8  # of a handshake, which takes two or three


def verified_host(certificate: str, key: str, host: str) -> str:
    """Return `host` if the certificate in the file is for it, else the first name that it is for.

    Returns `host`, too, if the certificate has no such name, or cannot be used.
    """
    try:
        names = _names(certificate, key)
    except (OSError, ssl.SSLError):
        return host  # clients get the reason from the server's certificate
    usable = [name for name in names if not name.startswith("*.")]
    return host if host in names or not usable else usable[0]


def _names(certificate: str, key: str) -> list[str]:
    """Return the addresses and names of a certificate, addresses first."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key, password="")
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.check_hostname = False
    calling.load_verify_locations(certificate)
    calling.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = calling.wrap_bio(to_client, to_server)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MAX_FLIGHTS):
        if _has_shaken(client):
            break
        _has_shaken(server)
    described = client.getpeercert() or {}
    rows = [row for row in described.get("subjectAltName", ()) if isinstance(row, tuple)]
    return [str(value) for _, value in sorted(rows, key=lambda row: row[0] != "IP Address")]


def _has_shaken(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
