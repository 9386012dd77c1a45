"""Networks that segment: what the server says is held against the networks themselves."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("httpx", reason="httpx, which drives the server, is not installed")

from starlette.testclient import TestClient

from tests.playground.conftest import small_network, small_segmenter
from torchcaps.playground import masks
from torchcaps.playground.answers import Playground
from torchcaps.playground.app import make_app
from torchcaps.playground.drawing import transform_image
from torchcaps.playground.messages import LARGEST
from torchcaps.playground.segmenter import Segmenter

SHAPE, COLOUR = (1, 16, 24), (3, 20, 16)


@pytest.fixture
def playground() -> Playground:
    networks = [small_segmenter(), small_segmenter("colour", COLOUR), small_network()]
    return Playground(networks, small_segmenter("beside"))


@pytest.fixture
def client(playground: Playground) -> Iterator[TestClient]:
    with TestClient(make_app(playground), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def pixels(shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def message(image: torch.Tensor, **further: Any) -> dict[str, Any]:
    return {"network": 0, "image": base64.b64encode(image.numpy().tobytes()).decode(), **further}


def decoded(text: str, *shape: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).view(shape)


@torch.no_grad()
def wanted(network: Any, image: torch.Tensor) -> torch.Tensor:
    return network.model(image[None]).scores[0]


@pytest.mark.parametrize(("k", "shape"), [(0, SHAPE), (1, COLOUR)])
def test_scores_are_the_networks_own(client: TestClient, playground: Playground, k: int, shape: Any) -> None:
    image = pixels(shape)
    found = client.post("/api/see", json=message(image, network=k)).json()
    scores = wanted(playground.networks[k], image / 255)
    said = decoded(found["scores"], *scores.shape)
    assert (said / 255 - scores).abs().max() <= 1 / 255
    assert torch.equal(said >= 128, scores > 0.5)  # what is inside is exact
    assert torch.equal(decoded(found["image"], *shape), image)
    for each, of_class in zip(found["classes"], scores, strict=True):
        inside = of_class > 0.5
        assert each["area"] == pytest.approx(float(inside.float().mean()), abs=1e-5)
        assert each["sure"] == pytest.approx(
            float(of_class[inside].mean() if inside.any() else of_class.max()), abs=1e-5
        )
    assert (found["beside"] is None) == (k == 1)  # the one beside takes other images


def test_a_class_that_is_somewhere_and_one_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([[[0.9, 0.5, 0.51, 0.1]], [[0.2, 0.5, 0.4999, 0.0]]])
    segmenter = small_segmenter(shape=(1, 8, 8))
    monkeypatch.setattr(Segmenter, "see", lambda *_: scores)
    found = masks.see(segmenter, segmenter, message(pixels((1, 8, 8))))
    assert found["classes"] == [{"area": 0.5, "sure": 0.705}, {"area": 0.0, "sure": 0.5}]
    inside = [
        [True, False, True, False],
        [False, False, False, False],
    ]  # one half is outside, as where masks are written
    assert (decoded(found["scores"], 2, 4) >= 128).tolist() == inside
    assert found["beside"] == found["scores"]


def test_an_image_is_moved_before_it_is_seen(client: TestClient, playground: Playground) -> None:
    image, moves = pixels(), {"rotate": 30.0, "shift_x": 2.0, "shift_y": -1.0, "shear": 0.2}
    found = client.post("/api/see", json=message(image, **moves)).json()
    moved = transform_image(image / 255, rotate=30, shift=(2, -1), shear=0.2)
    assert (decoded(found["image"], *SHAPE) / 255 - moved).abs().max() <= 0.51 / 255
    scores = wanted(playground.networks[0], moved)
    assert (decoded(found["scores"], 2, 16, 24) / 255 - scores).abs().max() <= 1 / 255


def test_lengths_of_every_layer_come(client: TestClient, playground: Playground) -> None:
    image = pixels()
    layers = client.post("/api/explain", json=message(image)).json()["layers"]
    network = playground.networks[0]
    with torch.no_grad():
        capsules = network.model(image[None] / 255).capsules
    assert len(layers) == len(capsules) == 12
    for layer, each in zip(layers, capsules, strict=True):
        assert layer["shape"] == list(each.activation.shape[1:])
        said = decoded(layer["lengths"], *layer["shape"]) / 255
        assert (said - each.activation[0]).abs().max() <= 0.51 / 255
    assert client.post("/api/explain", json=message(pixels(COLOUR), network=1)).json() == {"layers": []}


def test_a_test_image_comes_with_its_true_masks(client: TestClient, playground: Playground) -> None:
    network = playground.networks[1]
    assert isinstance(network, Segmenter) and network.samples is not None and network.samples.masks is not None
    found = {}
    for seed in range(20):
        said = client.post("/api/sample", json={"network": 1, "seed": seed}).json()
        index = said["index"]
        assert torch.equal(decoded(said["image"], *COLOUR), network.samples.images[index])
        assert torch.equal(decoded(said["masks"], 2, *COLOUR[1:]) == 255, network.samples.masks[index])
        found[index] = True
    assert len(found) > 1


def test_the_page_is_told_what_segments(playground: Playground) -> None:
    caps, unet, classifier = playground.describe()["networks"]
    assert caps == {
        "name": "masks", "classes": ["cell", "wall"], "beside": "beside", "segments": True, "capsules": True,
        "shape": [1, 16, 24], "colours": [[230, 159, 0], [86, 180, 233]], "samples": 5,
    }  # fmt: skip
    assert (unet["capsules"], unet["beside"], classifier["segments"]) == (False, None, False)


BAD = [
    ({}, "image must be base64 text, got None"),
    ({"image": "?"}, "image must be base64 text"),
    ({"image": "AAAA"}, "image must be 1×16×24 = 384 bytes, got 3"),
    (message(pixels(COLOUR)), "image must be 1×16×24 = 384 bytes, got 960"),
    (message(pixels(), network=3), "network must be a whole number from 0 to 2, got 3"),
    (message(pixels(), rotate="1"), "rotate must be a number from -180 to 180, got '1'"),
]


@pytest.mark.parametrize(("wrong", "reason"), BAD)
def test_a_wrong_image_is_refused_with_a_reason(client: TestClient, wrong: Any, reason: str) -> None:
    for path in ("see", "explain"):
        answer = client.post(f"/api/{path}", json=wrong)
        assert answer.status_code == 400 and reason in answer.json()["error"]


def test_what_is_asked_of_classifiers_alone_is_refused(client: TestClient) -> None:
    for path, further in (("decode", {"pose": [0.0] * 16}), ("attack", {"epsilon": 0.1})):
        answer = client.post(f"/api/{path}", json=message(pixels(), **further))
        assert answer.status_code == 400
        assert "network must be a classifier to decode or to attack, got masks" in answer.json()["error"]


def test_a_large_image_has_room_and_a_larger_message_has_not() -> None:
    shape = (3, 160, 240)
    with TestClient(make_app(Playground([small_segmenter("large", shape)])), base_url="http://127.0.0.1") as client:
        image = message(pixels(shape))
        assert len(image["image"]) > LARGEST
        assert client.post("/api/see", json=image).status_code == 200
        assert client.post("/api/see", json={**image, "further": "x" * 20_000}).status_code == 413


def test_networks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="beside must have the task, the classes and the image shape"):
        Playground([small_segmenter()], small_network())
    with pytest.raises(ValueError, match="odd: image_shape must have one or three channels to draw for, got .2, 8, 8"):
        Segmenter("odd", small_segmenter().model, ("a",), (2, 8, 8))
    with pytest.raises(ValueError, match="samples must be at hand for a test image"):
        masks.sample(Segmenter("bare", small_segmenter().model, ("cell", "wall"), SHAPE), {"seed": 0})
