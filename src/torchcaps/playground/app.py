"""The server: the page's own files, and answers to its questions alone."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from torchcaps.playground.answers import Playground
from torchcaps.playground.messages import read_json

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Nothing is loaded from elsewhere, and no other page may show this one or read from it.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: Names by which this machine alone is called.
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_Answer = Callable[[dict[str, Any]], dict[str, Any]]


def make_app(playground: Playground, hosts: Sequence[str] = LOOPBACK, *, any_address: bool = False) -> Starlette:
    """Make the application that serves the page.

    Every answer that is none has a reason and no trace. Another page's script gets nothing: requests must name one of
    the ``hosts``, and come from this page, if from any.

    Args:
        playground: what it can ask.
        hosts: names by which the server may be called.
        any_address: it may be called by any address of numbers too, as where it listens on all of them.
    """
    guard = _guard(tuple(hosts), any_address=any_address)
    answers: dict[str, _Answer] = {
        name: getattr(playground, name)
        for name in ("see", "explain", "decode", "attack", "take_apart", "toy", "sample")
    }
    routes = [Route("/api/playground", _describing(playground), methods=["GET"])]
    routes += [
        Route(f"/api/{name}", _answering(answer, playground.largest), methods=["POST"])
        for name, answer in answers.items()
    ]
    routes += [Route(path, _file(body, kind), methods=["GET"]) for path, (body, kind) in _pages().items()]
    return Starlette(
        routes=routes,
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={HTTPException: _refusal, Exception: _failure},
    )


def _pages() -> dict[str, tuple[bytes, str]]:
    """Read the page's files once: what a request names is looked up, never opened."""
    found = {}
    for file in files("torchcaps.playground").joinpath("static").iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _KINDS:
            found[f"/{file.name}"] = (file.read_bytes(), _KINDS[ending])
    return {"/": found["/index.html"], **found}


def _file(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(_request: Request) -> Response:
        return Response(body, media_type=kind)

    return send


def _describing(playground: Playground) -> Callable[[Request], Awaitable[Response]]:
    async def describe(_request: Request) -> Response:
        return JSONResponse(playground.describe())

    return describe


def _answering(answer: _Answer, largest: int) -> Callable[[Request], Awaitable[Response]]:
    async def reply(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"the content type must be application/json, got {kind[:40] or 'none'}")
        body = await _read_body(request, largest)
        try:
            return JSONResponse(await run_in_threadpool(lambda: answer(read_json(body))))
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    return reply


async def _read_body(request: Request, largest: int) -> bytes:
    """Read no more than a message can have, whatever its header says."""
    too_large = HTTPException(413, f"a message must have at most {largest} bytes")
    stated = request.headers.get("content-length", "0")
    if not stated.isascii() or not stated.isdigit() or int(stated[:12]) > largest:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise too_large
    return bytes(body)


def _guard(hosts: tuple[str, ...], *, any_address: bool) -> Any:
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        host = request.headers.get("host", "")
        name = _name(host)
        if name not in hosts and not (any_address and _is_address(name)):
            response = _said(421, f"the host must be one of {', '.join(hosts)}, got {host[:60] or 'none'}")
        elif not _is_own(request, host):
            response = _said(403, "requests must come from the playground's own page")
        else:
            response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    return guard


def _is_own(request: Request, host: str) -> bool:
    """Return whether the request comes from this page, or from no page at all."""
    origin = request.headers.get("origin")
    if origin is not None:
        return origin == f"{request.url.scheme}://{host}"
    site = request.headers.get("sec-fetch-site", "none")
    opens_page = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
    return site in ("none", "same-origin") or opens_page


def _name(host: str) -> str:
    """Return a host without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _said(error.status_code, error.detail, error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    logging.getLogger("torchcaps").error("%s failed", request.url.path, exc_info=error)
    return _said(500, "the playground failed; the terminal that it runs in says why")


def _said(status: int, reason: str, headers: Any = None) -> Response:
    return JSONResponse({"error": reason}, status_code=status, headers=headers)
