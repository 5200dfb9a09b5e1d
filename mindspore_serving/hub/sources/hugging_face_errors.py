"""Errors of Hugging Face's library as one sentence: the cause, what is near, and what to do."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx2
from huggingface_hub import get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RevisionNotFoundError,
)

from mindspore_serving.errors import NotFound, ServingError, StartError, did_you_mean
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.source import Unreachable

_SEARCH_SECONDS = 4.0
_SHOWN = 3  # names in an error
_MAX_NAMES = 100  # of a search


def explain(
    error: Exception,
    reference: Reference,
    endpoint: str,
    cached: Sequence[str],
    path: str = "",
) -> ServingError:
    """Return the error for users; `path` is of the file, `cached` are names in the cache."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # which its text, of several lines, has too
    name = reference.name
    if isinstance(error, HfHubHTTPError):
        return _of_repository(error, reference, endpoint, path) or _of_status(
            error, name, endpoint, cached
        )
    is_network = isinstance(error, httpx2.HTTPError | TimeoutError | ConnectionError)
    if is_network and path:
        text = f"{path} of {name} was not downloaded completely ({_cause(error)})"
        return Unreachable(f"{text}: try again, the download goes on where it stopped")
    if is_network:
        return Unreachable(_no_network(error, name, endpoint, cached))
    text = " ".join(str(error).split())
    return StartError(f"{path or name} cannot be downloaded from {endpoint}: {text}")


def _of_repository(
    error: HfHubHTTPError, reference: Reference, endpoint: str, path: str
) -> ServingError | None:
    """Return the error of a repository that exists; None for another."""
    name, page = reference.name, f"{endpoint}/{reference.name}"
    if isinstance(error, GatedRepoError):
        return StartError(
            f"{name} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that "
            "account (or run `hf auth login`)"
        )
    if isinstance(error, RevisionNotFoundError):
        near = did_you_mean(reference.revision, _revisions(name, endpoint))
        return NotFound(f"{page} has no revision {reference.revision!r}{near}")
    if isinstance(error, RemoteEntryNotFoundError):
        return NotFound(f"{page} has no file {path!r}")
    if isinstance(error, DisabledRepoError):
        return StartError(f"{page} was disabled by its owner or by Hugging Face")
    return None


def _of_status(
    error: HfHubHTTPError, name: str, endpoint: str, cached: Sequence[str]
) -> ServingError:
    status = error.response.status_code
    if status == 401 and "Invalid credentials" in str(error):
        return StartError(f"{endpoint} does not accept HF_TOKEN: it is wrong, or has expired")
    if status in (401, 403, 404):
        token = "HF_TOKEN has no access to it" if get_token() else "set HF_TOKEN"
        near = _near(name, endpoint, cached)
        return NotFound(f"{endpoint} has no model {name}{near}; if it is private, {token}")
    if status == 429:
        wait = error.response.headers.get("Retry-After", "")
        after = f"in {wait} s" if wait.isdigit() else "later"
        more = "" if get_token() else ", or set HF_TOKEN, which allows more"
        return Unreachable(
            f"{endpoint} has had too many requests from this machine: try again {after}{more}"
        )
    return Unreachable(f"{endpoint} answered {status} for {name}: try again later")


def _no_network(error: Exception, name: str, endpoint: str, cached: Sequence[str]) -> str:
    cause = _cause(error)
    near = did_you_mean(name, cached)
    if not near and cached:
        near = f"; downloaded before: {', '.join(cached[:_SHOWN])}" + ", ..." * (
            len(cached) > _SHOWN
        )
    return (
        f"{name} is not on this machine, and {endpoint} cannot be reached ({cause}): give the path "
        f"of a directory or file, set HF_ENDPOINT to a mirror, or HTTPS_PROXY{near}"
    )


def _cause(error: BaseException) -> str:
    """Return the text of the system's error below those of libraries."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return str(error) or type(error).__name__


def token_headers() -> dict[str, str]:
    """Return the headers with the user's token; {} if there is none."""
    token = get_token()
    return {"authorization": f"Bearer {token}"} if token else {}


def _near(name: str, endpoint: str, cached: Sequence[str]) -> str:
    """Return "; did you mean ..." by the cache, the owner's other models, and a search."""
    owner, _, title = name.rpartition("/")
    near = did_you_mean(name, cached)
    if not near and owner:
        near = did_you_mean(name, _search(endpoint, author=owner))
    if near:
        return near
    known = _search(endpoint, search=title)
    if near := did_you_mean(name, known):
        return near
    return f"; there are {', '.join(known[:_SHOWN])}" if known else ""


def _search(endpoint: str, **parameters: Any) -> list[str]:
    """Return names of models, the most downloaded ones first; [] if the hub does not answer."""
    query = {"sort": "downloads", "limit": _MAX_NAMES, **parameters}
    models = _get(f"{endpoint}/api/models", query)
    names = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str)]


def _revisions(name: str, endpoint: str) -> list[str]:
    refs: Any = _get(f"{endpoint}/api/models/{name}/refs", {})
    groups = [refs.get(kind) or [] for kind in ("branches", "tags")] if refs else []
    return [str(ref.get("name")) for group in groups for ref in group]


def _get(url: str, query: dict[str, Any]) -> Any:
    with suppress(httpx2.HTTPError, OSError, ValueError):
        headers = token_headers()
        answer = httpx2.get(
            url, params=query, headers=headers, timeout=_SEARCH_SECONDS, follow_redirects=True
        )
        if answer.status_code == 200:
            return answer.json()
    return []
