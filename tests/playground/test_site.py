from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.playground.conftest import small_network, small_segmenter, small_toys
from torchcaps import load
from torchcaps.cli import main
from torchcaps.playground import Network, runtime, segmenter_files, site, write_playground
from torchcaps.playground.answers import Playground
from torchcaps.playground.load import OURS, PARTS
from torchcaps.playground.programs import write_decoder, write_inside, write_masks


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is taken for the npm package, though nothing in it runs."""
    import hashlib

    dist = tmp_path / "onnxruntime-web" / "dist"
    dist.mkdir(parents=True)
    known = {}
    for name, (called, _) in runtime._FILES.items():
        (dist / name).write_text(name)
        known[name] = (called, hashlib.sha256(name.encode()).hexdigest())
    monkeypatch.setattr(runtime, "_FILES", known)
    return dist.parent


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the programs, whose export takes seconds."""
    monkeypatch.setattr(site, "check_packages", lambda *_: None)
    monkeypatch.setattr(site, "_write_programs", lambda *_: {"inside": None, "decoder": None, "beside": None})
    monkeypatch.setattr(segmenter_files, "write_masks", lambda *_: None)


@pytest.fixture
def playground() -> Playground:
    return Playground([small_network()], None, load("digits").test, toys=small_toys())


def test_the_page_is_written_with_its_images_and_rules(
    playground: Playground, package: Path, no_programs: None, tmp_path: Path
) -> None:
    folder = site.write_site(playground, tmp_path / "page", onnxruntime_web=package)
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    assert not about["attacks"]
    labels = about["test_images"]["labels"]
    assert playground.samples is not None
    assert labels == playground.samples.labels[: len(labels)].tolist()
    assert about["samples"] == len(labels) == min(site.N_SAMPLES, len(playground.samples))
    pixels = torch.frombuffer(bytearray((folder / "samples.bin").read_bytes()), dtype=torch.uint8)
    assert torch.equal(pixels.view(-1, 1, 28, 28), playground.samples.images[: len(labels)])
    assert "default-src 'none'" in (folder / "index.html").read_text(encoding="utf-8")
    assert "worker" in (folder / "api.js").read_text(encoding="utf-8")
    assert playground.toys is not None
    assert json.loads((folder / "toys" / "1.json").read_text(encoding="utf-8")) == playground.toys.show(1)
    assert (folder / "onnxruntime.wasm").read_text() == "ort-wasm-simd-threaded.wasm"
    assert folder.stat().st_mode & 0o055 == 0o055  # others may read it


def test_test_images_are_left_out_where_they_are_not_to_be_seen(
    package: Path, no_programs: None, tmp_path: Path
) -> None:
    shown = Playground([small_network(), small_segmenter()], None, load("digits").test)
    for test_images in (True, False):
        folder = site.write_site(shown, tmp_path / "page", onnxruntime_web=package, test_images=test_images)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        assert (about["samples"] > 0) == (about["networks"][1]["samples"] > 0) == test_images
        assert (about["networks"][1]["samples_file"] is not None) == ("test_images" in about) == test_images
        assert len(list(folder.rglob("*samples.bin"))) == 2 * test_images


def test_the_test_images_of_a_network_that_segments_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmenter_files, "write_masks", lambda *_: None)
    shown = small_segmenter("colour", (3, 7, 5))  # 70 bits of masks do not fill their bytes
    assert shown.samples is not None and shown.samples.masks is not None
    size = 3 * 7 * 5 + 9
    (tmp_path / "networks").mkdir()
    for most, n in ((8 * 2**20, 5), (3 * size + 1, 3), (1, 1)):
        monkeypatch.setattr(segmenter_files, "MOST_BYTES", most)
        says = segmenter_files.write_segmenter(shown, None, tmp_path, "networks/0", test_images=True)
        assert says["samples"] == n and says["programs"]["beside"] is None
        written = np.frombuffer((tmp_path / says["samples_file"]).read_bytes(), np.uint8).reshape(n, size)
        assert np.array_equal(written[:, : 3 * 7 * 5], shown.samples.images[:n].flatten(1).numpy())
        bits = np.unpackbits(written[:, 3 * 7 * 5 :], axis=1, bitorder="little")[:, : 2 * 7 * 5]
        assert np.array_equal(bits.astype(bool), shown.samples.masks[:n].flatten(1).numpy())


def test_its_own_folder_is_written_anew_and_what_is_not_its_own_stays(
    playground: Playground, package: Path, no_programs: None, tmp_path: Path
) -> None:
    folder = site.write_site(playground, tmp_path / "page", onnxruntime_web=package)
    (folder / "CNAME").write_text("example.org")
    (folder / "networks" / "7-inside.onnx").write_text("of a third network")
    (folder / "main.js").write_text("old")
    site.write_site(playground, folder, onnxruntime_web=package)
    assert (folder / "CNAME").read_text() == "example.org"
    assert not (folder / "networks" / "7-inside.onnx").exists()
    assert (folder / "main.js").read_text(encoding="utf-8") != "old"


@pytest.mark.parametrize("mark", [None, "{", "[]", '"torchcaps"', '{"torchcaps": "0.1.0"}'])
def test_a_folder_of_other_files_is_refused_before_anything_is_loaded(mark: str | None, tmp_path: Path) -> None:
    (tmp_path / ("photo.png" if mark is None else "about.json")).write_text(mark or "")
    with pytest.raises(ValueError, match="static must be a new or empty folder, or one that it wrote before, got"):
        write_playground(tmp_path, ["no such run"])
    with pytest.raises(ValueError, match="static must be a folder, got the file"):
        write_playground(next(tmp_path.iterdir()), ["no such run"])


def test_another_version_of_the_runtime_is_refused(
    playground: Playground, package: Path, no_programs: None, tmp_path: Path
) -> None:
    (package / "dist" / "ort-wasm-simd-threaded.wasm").write_text("of another version")
    with pytest.raises(ValueError, match=r"onnxruntime-web must be version 1\.30\.0, got another ort-wasm"):
        site.write_site(playground, tmp_path / "page", onnxruntime_web=package)
    with pytest.raises(ValueError, match="onnxruntime-web must be the folder of that npm package"):
        site.write_site(playground, tmp_path / "page", onnxruntime_web=tmp_path)
    assert not (tmp_path / "page").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ValueError, match=r"static needs onnx: pip install 'torchcaps\[export\]'"):
        site.write_site(Playground([small_network()]), tmp_path / "page")


def test_the_command_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def write(folder: str, runs: Any, **further: Any) -> Path:
        asked.append((folder, runs, further))
        return Path(folder)

    monkeypatch.setattr("torchcaps.playground.write_playground", write)
    assert main(["playground", "runs/a", "--static", str(tmp_path), "--onnxruntime-web", "package"]) == 0
    shown = {"beside": None, "parts": None, "toys": None, "onnxruntime_web": "package", "test_images": True}
    assert asked == [(str(tmp_path), ["runs/a"], shown)]
    assert f"wrote {tmp_path}: give it to any static host" in capsys.readouterr().out
    assert main(["playground", "--static", str(tmp_path), "--no-test-images"]) == 0
    assert asked[1] == (str(tmp_path), OURS, shown | {"parts": PARTS, "onnxruntime_web": None, "test_images": False})
    for option in (["--onnxruntime-web", "package"], ["--no-test-images"]):
        assert main(["playground", *option]) == 2
        assert f"{option[0]} is for --static, which is not given" in capsys.readouterr().err


@pytest.fixture(scope="module")
def network() -> Network:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed; it is of the extra export")
    return small_network()


def test_a_program_says_what_the_network_says(network: Network, tmp_path: Path) -> None:
    import onnxruntime

    images = load("digits").test.images[:3] / 255
    write_inside(network, images, tmp_path / "inside.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "inside.onnx"))
    scores, coupling = session.run(["scores", "coupling"], {"images": images[1:2].numpy()})
    seen, explained = network.see(images[1]), network.explain(images[1])
    torch.testing.assert_close(torch.from_numpy(scores), seen.scores)
    for found, step in zip(coupling, explained["iterations"], strict=True):
        wanted = torch.tensor(step["tree"]["coupling"])
        torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-4, rtol=0)  # four digits are sent
    assert network.inside is not None
    poses = network.inside(images[:1]).poses
    write_decoder(network, poses, tmp_path / "decoder.onnx")
    decoder = onnxruntime.InferenceSession(str(tmp_path / "decoder.onnx"))
    (found,) = decoder.run(["images"], {"poses": poses[:4].numpy(), "label": torch.tensor([7]).numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network.decode(poses[:4], 7))


@pytest.mark.parametrize("shape", [(1, 16, 24), (3, 20, 16)])
def test_a_program_says_what_a_network_that_segments_says(
    network: Network, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    import onnxruntime

    segmenter = small_segmenter(shape=shape)
    assert segmenter.samples is not None
    images = segmenter.samples.images[:3] / 255
    write_masks(segmenter, images, tmp_path / "masks.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "masks.onnx"))
    for image in (images[2], torch.rand(shape)):
        scores, *lengths = map(torch.from_numpy, session.run(None, {"images": image[None].numpy()}))
        torch.testing.assert_close(scores, segmenter.see(image), atol=1e-5, rtol=0)
        layers = segmenter.lengths(image)
        assert len(lengths) == len(layers) == (12 if segmenter.has_capsules else 0)
        for found, wanted in zip(lengths, layers, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert [each.name for each in session.get_outputs()][:2] == ["scores", "lengths_1"][: 1 + bool(layers)]


def test_a_program_that_differs_is_refused(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    run = onnxruntime.InferenceSession.run
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda *arguments: [each + 1e-4 for each in run(*arguments)]
    )
    with pytest.raises(ValueError, match=r"inside\.onnx must give the network's scores to 1e-05, got a difference"):
        write_inside(network, torch.rand(1, 1, 28, 28), tmp_path / "inside.onnx")
    with pytest.raises(ValueError, match=r"masks\.onnx must give the network's scores to 1e-05, got a difference"):
        write_masks(small_segmenter(), torch.rand(1, 1, 16, 24), tmp_path / "masks.onnx")
