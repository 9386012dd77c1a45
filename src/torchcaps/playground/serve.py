"""Serve the page on this machine, until Ctrl-C."""

from __future__ import annotations

import ipaddress
import socket
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from torchcaps.playground.load import OURS, load_playground


def serve_playground(
    runs: Sequence[str | Path] = OURS,
    *,
    beside: str | Path | None = None,
    parts: str | Path | None = None,
    toys: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    opens_browser: bool = True,
) -> None:
    """Serve the playground of trained networks until it is interrupted.

    Args:
        runs: folders of finished runs of capsule networks or of networks that segment, ``model.pt`` files beside their
            configuration, or weights that come with the library, such as "pretrained:mnist-small".
        beside: that of another network, such as a CNN or a U-Net, whose answers are shown too.
        parts: that of a ``template_autoencoder``, which takes the drawing apart.
        toys: that of a network of small NORB, whose test images are at hand: toys are shown from all sides.
        host: address to listen on; others than loopback let other machines in.
        port: 0 takes a free one.
        opens_browser: open the page.

    Raises:
        ValueError: no run, one that does not fit, a port that is taken, or a missing package.
    """
    try:
        import uvicorn

        from torchcaps.playground.app import LOOPBACK, make_app
    except ImportError as error:
        raise ValueError(f"the playground needs {error.name}: pip install 'torchcaps[playground]'") from error
    # Threads of one small image wait for each other longer than they work, the more so on a busy machine.
    torch.set_num_threads(1)
    playground = load_playground(runs, beside, parts, toys)
    app = make_app(playground, (host, *LOOPBACK), any_address=not _is_loopback(host))
    with listen(host, port) as listening:
        address = f"http://{_in_address(host)}:{listening.getsockname()[1]}/"
        print(f"playground: {address} (Ctrl-C stops it)", flush=True)
        if opens_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=128,
            timeout_graceful_shutdown=2,
            ws="none",
        )
        with suppress(KeyboardInterrupt):  # raised anew by uvicorn, once it has stopped
            uvicorn.Server(config).run(sockets=[listening])
    print("stopped", flush=True)


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address, so that a browser can be opened before the server has started.

    Raises:
        ValueError: no such address or port here, or one that is taken.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be 0 … 65535, got {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ValueError(f"host and port must be free to listen on, got {host} and {port}: {error}") from error
    # asyncio does so itself for sockets whose protocol is named, which create_server's is not. Else an answer's body
    # waits until its head is acknowledged: 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _in_address(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{shown}]" if ":" in shown else shown
