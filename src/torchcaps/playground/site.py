"""The page as a folder of files, for any static host: the networks run in the browser."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps import __version__
from torchcaps.data import Images
from torchcaps.data.images import to_float
from torchcaps.playground import masks, meaning, network
from torchcaps.playground.answers import Playground
from torchcaps.playground.drawing import SIDE
from torchcaps.playground.load import OURS, load_playground
from torchcaps.playground.programs import write_decoder, write_inside, write_parts, write_probabilities
from torchcaps.playground.runtime import VERSION, copy_runtime
from torchcaps.playground.segmenter import Segmenter
from torchcaps.playground.segmenter_files import COMPARED, N_SAMPLES, write_segmenter
from torchcaps.training.export import FORMATS, check_packages

#: The file by which a folder is known to be one of these pages.
_MARK = "about.json"
#: Test images for classifiers.
_SAMPLES = "samples.bin"
#: Scripts of this page alone, and none of another machine's. The worker, in which WebAssembly is compiled, has none
#: of a page's rules but those of its own host.
_RULES = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def write_playground(
    folder: str | Path,
    runs: Sequence[str | Path] = OURS,
    *,
    beside: str | Path | None = None,
    parts: str | Path | None = None,
    toys: str | Path | None = None,
    onnxruntime_web: str | Path | None = None,
    test_images: bool = True,
) -> Path:
    """Write the playground of trained networks as files that any static host can serve.

    The networks run in the browser, by onnxruntime-web on WebAssembly. There is no attack, which needs gradients.

    Args:
        folder: not there, empty, or written by this function before.
        runs: as for :func:`serve_playground`.
        beside: as for :func:`serve_playground`.
        parts: as for :func:`serve_playground`.
        toys: as for :func:`serve_playground`.
        onnxruntime_web: folder of the npm package of that name, version 1.30.0; None downloads it into the cache.
        test_images: lay test images beside the page, for all to see. Those of a run that segments are its own, and have
            their true masks.

    Returns:
        The folder.

    Raises:
        ValueError: a folder of other files, no run, one that does not fit, a missing package, another version of
            onnxruntime-web, or a program that differs from its network by more than 1e-5. Nothing is written then.
    """
    check_folder(Path(folder).expanduser())
    playground = load_playground(runs, beside, parts, toys)
    return write_site(playground, folder, onnxruntime_web=onnxruntime_web, test_images=test_images)


def write_site(
    playground: Playground,
    folder: str | Path,
    *,
    onnxruntime_web: str | Path | None = None,
    test_images: bool = True,
) -> Path:
    """Write the page and its networks into a folder that any static host can serve.

    Args:
        playground: its networks, the one beside, and test images, of which the first 1,000 are written.
        folder: as for :func:`write_playground`; files in it that are not the page's own stay.
        onnxruntime_web: as for :func:`write_playground`.
        test_images: as for :func:`write_playground`.

    Raises:
        ValueError: as :func:`write_playground`, of the folder, of packages, of networks and of programs.
    """
    folder = Path(folder).expanduser()
    check_folder(folder)
    check_packages("static", FORMATS["onnx"].packages)
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "page"  # whose mode, unlike that of the temporary folder, lets others read
        made.mkdir()
        copy_runtime(None if onnxruntime_web is None else Path(onnxruntime_web), made)
        _copy_page(made)
        _write_networks(playground, made, test_images=test_images)
        for name in ("networks", "toys"):  # there may have been more of them
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / _SAMPLES).unlink(missing_ok=True)  # which may be left out now
        shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder


def check_folder(folder: Path) -> None:
    """Refuse a folder whose files are not the page's.

    Raises:
        ValueError: naming it.
    """
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder / _MARK):
        raise ValueError(f"static must be a new or empty folder, or one that it wrote before, got {folder}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"static must be a folder, got the file {folder}")


def _is_ours(mark: Path) -> bool:
    try:
        found = json.loads(mark.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "torchcaps" in found and "onnxruntime_web" in found


def _copy_page(folder: Path) -> None:
    """Copy the page's files; those of ``in_browser`` take the place of what asks a server."""
    with as_file(files("torchcaps.playground").joinpath("static")) as static:
        for file in (*static.iterdir(), *(static / "in_browser").iterdir()):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    page = folder / "index.html"
    head = f'<meta http-equiv="Content-Security-Policy" content="{_RULES}">'
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}', 1), encoding="utf-8")


def _write_networks(playground: Playground, folder: Path, *, test_images: bool) -> None:
    (folder / "networks").mkdir()
    about: dict[str, Any] = {"torchcaps": __version__, "onnxruntime_web": VERSION, **playground.describe()}
    about |= {"attacks": False, "constants": _constants()}
    for k, (each, says) in enumerate(zip(playground.networks, about["networks"], strict=True)):
        if isinstance(each, Segmenter):
            beside = playground.beside_of(each)
            says.update(write_segmenter(each, beside, folder, f"networks/{k}", test_images=test_images))
            continue
        assert each.inside is not None
        says["extent"], says["map_shape"] = list(each.inside.extent), list(each.inside.map_shape)
        says["programs"] = _write_programs(playground, each, folder, f"networks/{k}")
    if playground.parts is not None:
        images = _images(playground.samples, 0)
        write_parts(playground.parts, images, folder / "networks" / "parts.onnx")
    if playground.toys is not None:
        (folder / "toys").mkdir()
        for k in range(len(playground.toys.toys)):
            (folder / "toys" / f"{k}.json").write_text(json.dumps(playground.toys.show(k)), encoding="utf-8")
    about["samples"] = 0
    if playground.samples is not None and test_images:
        about["samples"] = min(N_SAMPLES, len(playground.samples))
        about["test_images"] = {"side": SIDE, "labels": playground.samples.labels[:N_SAMPLES].tolist()}
        (folder / _SAMPLES).write_bytes(playground.samples.images[:N_SAMPLES].contiguous().numpy().tobytes())
    (folder / _MARK).write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def _write_programs(playground: Playground, each: network.Network, folder: Path, name: str) -> dict[str, str | None]:
    """Write the programs of a network, and return their names."""
    images = _images(playground.samples, each.margin)
    beside = playground.beside_of(each)
    programs: dict[str, str | None] = {"inside": f"{name}-inside.onnx", "decoder": None, "beside": None}
    write_inside(each, images, folder / f"{name}-inside.onnx")
    if each.decoder is not None:
        programs["decoder"] = f"{name}-decoder.onnx"
        assert each.inside is not None
        with torch.no_grad():
            write_decoder(each, each.inside(images[:1]).poses, folder / f"{name}-decoder.onnx")
    if beside is not None:
        programs["beside"] = f"{name}-beside.onnx"
        write_probabilities(beside, images, folder / f"{name}-beside.onnx")
    return programs


def _images(samples: Images | None, margin: int) -> Tensor:
    """Return images to compare on: test images, else noise."""
    noise = torch.rand(COMPARED, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return F.pad(noise if samples is None else to_float(samples.images[:COMPARED]), (margin,) * 4)


def _constants() -> dict[str, Any]:
    return {
        "present": network.PRESENT,
        "there": masks.THRESHOLD,
        "reach": meaning.REACH,
        "steps": meaning.STEPS,
        "seen": meaning.SEEN,
        "straight": meaning.STRAIGHT,
        "ahead": meaning.AHEAD,
    }
