"""The page of ``torchcaps playground`` in a browser: milliseconds from a stroke to its bars, and test digits read.

``python -m benchmarks.playground RUN --onnxruntime-web FOLDER --out study/results`` opens the page in Debian's
Chromium, first from its server, then as files of a static host, and draws with its mouse. Then it puts test digits on
the page's canvas, one after the other, and compares what the page says with what the network says of the same digits.
It needs the extras ``playground`` and ``export``, and playwright.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from study import records
from torchcaps.data.images import to_float
from torchcaps.playground import load_network
from torchcaps.playground.samples import find_samples
from torchcaps.training.environment import commit, versions

NAME = "playground"
N_DIGITS, N_STROKES = 200, 40
#: Puts test images on the canvas as the button does, and waits each time for what the page says.
_READ = """async (images) => {
  const { picture } = await import("./drawing.js");
  const said = [];
  for (const bytes of images) {
    await new Promise((resolve) => {
      new PerformanceObserver((_, observer) => { observer.disconnect(); resolve(); }).observe({ type: "measure" });
      window.playground.put(picture(Uint8Array.from(bytes)));
    });
    said.push(document.getElementById("verdict").textContent);
  }
  return said;
}"""


def measure(run: str, package: Path | None) -> dict[str, Any]:
    """Drive the page of a run from its server, and from a static host.

    Args:
        run: its folder, or "pretrained:mnist-small".
        package: folder of the npm package onnxruntime-web; None downloads it.

    Raises:
        ValueError: no test images of the run are at hand.
    """
    network = load_network(run)
    samples = find_samples(run, network.classes)
    if samples is None:
        raise ValueError(f"{run} must have test images at hand, got none: set TORCHCAPS_DATA")
    images, labels = samples.images[:N_DIGITS], samples.labels[:N_DIGITS].tolist()
    with torch.no_grad():
        own = network.model(to_float(images)).scores.argmax(dim=1).tolist()
    found: dict[str, Any] = {"n_digits": N_DIGITS, "accuracy_of_the_network": _accuracy(own, labels)}
    for name, opened in (("server", _served(run)), ("static", _written(run, package))):
        with opened as address, opened_page(address) as page:
            page.locator("html[data-ready]:not([data-working])").wait_for()
            page.locator("#agreement:not(:empty)").wait_for()
            before, times, after = os.getloadavg()[0], _draw(page), os.getloadavg()[0]
            said = [network.classes.index(text) for text in read_digits(page, images)]
        found[name] = {
            "n_updates": len(times),
            "stroke_to_bars_ms": {"median": statistics.median(times), "p95": statistics.quantiles(times, n=20)[-1]},
            "load_average": [before, after],
            "accuracy_on_the_page": _accuracy(said, labels),
            "says_another_class_than_the_network": sum(a != b for a, b in zip(said, own)),
        }
    return found


def read_digits(page: Any, images: torch.Tensor) -> list[str]:
    """Put images ``[N, 1, 28, 28]`` of bytes on the canvas, and return what the page says they are."""
    return page.evaluate(_READ, images.flatten(1).tolist())


@contextlib.contextmanager
def opened_page(address: str) -> Iterator[Any]:
    """Open an address in Chromium."""
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(address)
            yield page
        finally:
            browser.close()


@contextlib.contextmanager
def _served(run: str) -> Iterator[str]:
    with _program("torchcaps", "playground", run, "--no-browser") as server:
        assert server.stdout is not None
        found = re.search(r"http\S+", server.stdout.readline())
        assert found is not None
        yield found[0]


@contextlib.contextmanager
def _written(run: str, package: Path | None) -> Iterator[str]:
    from torchcaps.playground import write_playground

    with tempfile.TemporaryDirectory() as folder:
        write_playground(folder, [run], onnxruntime_web=package)
        with hosted(folder) as address:
            yield address


@contextlib.contextmanager
def hosted(folder: str) -> Iterator[str]:
    """Serve the files of a folder, as any static host would, and return their address."""
    with _program("http.server", "--bind", "127.0.0.1", "--directory", folder, "0") as server:
        assert server.stdout is not None
        found = re.search(r"http\S+/", server.stdout.readline())
        assert found is not None
        yield found[0]


@contextlib.contextmanager
def _program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a module until the block ends."""
    command = [sys.executable, "-u", "-m", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _draw(page: Any) -> list[float]:
    """Draw zigzags and return the milliseconds from each state of the canvas to its bars."""
    box = page.locator("#canvas").bounding_box()
    page.evaluate("performance.clearMeasures()")
    for k in range(N_STROKES):
        if k % 4 == 0:
            page.click("#clear")
        x, y = box["x"] + box["width"] * (0.25 + 0.03 * (k % 16)), box["y"] + box["height"] * 0.3
        page.mouse.move(x, y)
        page.mouse.down()
        for step in range(8):
            page.mouse.move(x + 15 * (step % 2), y + 15 * step)
            page.wait_for_timeout(30)
        page.mouse.up()
    page.wait_for_timeout(1000)
    return page.evaluate("performance.getEntriesByName('stroke to bars').map((entry) => entry.duration)")


def _accuracy(found: list[int], labels: list[int]) -> float:
    return sum(a == b for a, b in zip(found, labels)) / len(labels)


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder, or pretrained:NAME")
    parser.add_argument("--onnxruntime-web", type=Path, help="folder of that npm package")
    parser.add_argument("--out", type=Path, help="folder of checks.jsonl, such as study/results")
    parsed = parser.parse_args()
    content = {**measure(parsed.run, parsed.onnxruntime_web), "cores": os.cpu_count()}
    record = {"what": __doc__, "run": Path(parsed.run).name, "versions": versions(), "commit": commit(), **content}
    print(content)
    if parsed.out is not None:
        print(records.write("checks", NAME, record, parsed.out, replace=True))


if __name__ == "__main__":
    main()
