"""The page at an address, from its server or as files of a static host, and how a test drives it."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

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


def settle(page: Any) -> None:
    """Wait until what is shown is of what is drawn: the explanation is asked last."""
    page.wait_for_timeout(200)
    page.locator("html:not([data-working])").wait_for()


def draw(page: Any, strokes: list[list[tuple[float, float]]]) -> None:
    """Draw with the mouse, in parts of the canvas."""
    box = page.locator("#canvas").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places:
            page.mouse.move(*place)
        page.mouse.up()


def seen_image(page: Any, name: str) -> torch.Tensor:
    """The first channel of a canvas, 0 … 1."""
    pixels = page.locator(f"#{name}").evaluate(
        "(c) => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).filter((_, i) => i % 4 === 0)"
    )
    side = math.isqrt(len(pixels))
    return torch.tensor(pixels).view(side, side) / 255


def move(page: Any, name: str, value: float) -> None:
    page.locator(f"#{name}").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }", value
    )
    settle(page)
