"""The page at an address: from its server, or as files of a static host."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torchcaps.data.files import cache_folder
from torchcaps.playground.answers import Playground

BACKENDS = ("server", "static")


def onnxruntime_web() -> Path | None:
    """The folder of the npm package, or None where the cache has it; skips where it is in neither."""
    named = os.environ.get("TORCHCAPS_ONNXRUNTIME_WEB")
    if named is None and not any(cache_folder().glob("onnxruntime-web/*.tgz")):
        pytest.skip("TORCHCAPS_ONNXRUNTIME_WEB names no folder of that npm package: npm pack onnxruntime-web@1.30.0")
    return None if named is None else Path(named)


@contextlib.contextmanager
def opened(playground: Playground, backend: str, folder: Path) -> Iterator[str]:
    with served(playground) if backend == "server" else hosted(playground, folder) as address:
        yield address


@contextlib.contextmanager
def served(playground: Playground) -> Iterator[str]:
    """From the server that ``torchcaps playground`` runs."""
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name, reason="the extra playground is not installed")
    import uvicorn

    from torchcaps.playground.app import make_app
    from torchcaps.playground.serve import listen

    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(make_app(playground), log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def hosted(playground: Playground, folder: Path) -> Iterator[str]:
    """As files, from a server that knows no more than files, and sends no header of its own."""
    package = onnxruntime_web()
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed; it is of the extra export")
    from torchcaps.playground.site import write_site

    write_site(playground, folder, onnxruntime_web=package)
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""
