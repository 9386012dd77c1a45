#!/usr/bin/env bash
# CPython 3.8 to 3.13 and uvicorn 0.54.0: a server that is given socket.create_server's socket answers 40 ms later.
#
# Guess: uvicorn answers as fast over a socket that it is given as over one that it opens: asyncio sets TCP_NODELAY.
# Seen: asyncio sets it on sockets whose protocol is IPPROTO_TCP by name. Those of socket.create_server, and what they
# accept, have protocol 0, and keep Nagle's algorithm. An answer is written in two parts, head and body; the body waits
# until the client acknowledges the head, on Linux for some 40 ms. So: set TCP_NODELAY on the listening socket
# (playground/serve.py); what it accepts has it too.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import http.client
import platform
import socket
import statistics
import sys
import threading
import time

import uvicorn


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def milliseconds(nodelay):
    """The median answer over one connection to a server that is given its socket."""
    listening = socket.create_server(("127.0.0.1", 0))
    if nodelay:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    client = http.client.HTTPConnection(*listening.getsockname())
    times = []
    for _ in range(40):
        since = time.perf_counter()
        client.request("GET", "/")
        client.getresponse().read()
        times.append(1000 * (time.perf_counter() - since))
    client.close()
    server.should_exit = True
    thread.join()
    return statistics.median(times)


as_it_comes, mended = milliseconds(False), milliseconds(True)
print("Python", platform.python_version(), "uvicorn", uvicorn.__version__, "protocol 0:", round(as_it_comes, 1), "ms;",
      "TCP_NODELAY on the listening socket:", round(mended, 1), "ms")
sys.exit(0 if as_it_comes > 30 > mended else "the behaviour has changed")
PY
python3 -m venv "$place/uvicorn"
"$place/uvicorn/bin/pip" install --quiet uvicorn==0.54.0
"$place/uvicorn/bin/python" "$place/try.py"
