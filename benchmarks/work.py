"""What is measured, described in plain numbers, so that another process can make the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import by_jax
from benchmarks.compiled import compiled
from benchmarks.contenders import maps, take, torchs_convolutions, vectors
from benchmarks.in_use import JAX, InUse
from benchmarks.routed import Routed
from torchcaps.models import ModelOutput, build
from torchcaps.ops import (
    dynamic_routing_3d,
    locally_constrained_routing,
    margin_loss,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.ops.dynamic.over_map import squash_over_map
from torchcaps.ops.squash import squash_with_length

#: One call of what is measured; returns its results and gradients by name.
Call = Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Vectors:
    """Dynamic routing alone.

    Attributes:
        contender: see :data:`~benchmarks.contenders.DYNAMIC`, or "compiled".
        batch: B.
        n_in: I.
        n_out: J.
        d_in: pose size of the lower capsules.
        d_out: of the upper ones.
        n_iters: passes.
        backward: with the gradients of u and W.
        backend: of torch.compile, where the contender is "compiled".
    """

    contender: str = "ours"
    batch: int = 64
    n_in: int = 1152
    n_out: int = 10
    d_in: int = 8
    d_out: int = 16
    n_iters: int = 3
    backward: bool = True
    backend: str = "inductor"

    def prepare(
        self, device: torch.device, dtype: torch.dtype = torch.float32, rounded: torch.dtype | None = None
    ) -> Call:
        """Make the inputs, and return the call; inputs are first ``rounded`` to that dtype, if one is given."""
        random = _random(device, dtype, rounded)
        # Votes of such a size that they pull couplings far from equal: an iteration less would show.
        u = random(self.batch, self.n_in, self.d_in).requires_grad_(self.backward)
        weight = random(self.n_in, self.n_out, self.d_in, self.d_out, scale=0.3).requires_grad_(self.backward)
        d_pose = random(self.batch, self.n_out, self.d_out)
        route = vectors("reference" if self.contender == "compiled" else self.contender)
        if self.contender == "compiled":
            route = compiled(route, self.backend)

        def call() -> dict[str, Tensor]:
            pose = route(u, weight, None, self.n_iters)
            if not self.backward:
                return {"pose": pose}
            du, d_weight = torch.autograd.grad(pose, (u, weight), d_pose)
            return {"pose": pose.detach(), "gradient of u": du, "gradient of weight": d_weight}

        return call


@dataclass(frozen=True)
class Maps:
    """EM routing alone, or that by variational Bayes, of a map of 4×4 matrices.

    Attributes:
        contender: see :func:`~benchmarks.contenders.maps`, or "compiled".
        batch: B.
        n_types: T of the lower map.
        size: H and W.
        n_out: T of the upper one.
        kernel_size: K.
        stride: places from one receptive field to the next.
        n_iters: passes.
        settings: of :func:`torchcaps.ops.conv_em_routing`.
        backward: with the gradients of all inputs.
        backend: of torch.compile, where the contender is "compiled".
        routing: "em" or "variational_bayes".
    """

    contender: str = "ours"
    batch: int = 8
    n_types: int = 32
    size: int = 14
    n_out: int = 32
    kernel_size: int = 3
    stride: int = 2
    n_iters: int = 3
    settings: str = "released"
    backward: bool = True
    backend: str = "inductor"
    routing: str = "em"

    def prepare(
        self, device: torch.device, dtype: torch.dtype = torch.float32, rounded: torch.dtype | None = None
    ) -> Call:
        """Make the inputs, and return the call; inputs are first ``rounded`` to that dtype, if one is given."""
        random = _random(device, dtype, rounded)
        pose = random(self.batch, self.n_types, self.size, self.size, 4, 4)
        activation = random(self.batch, self.n_types, self.size, self.size, change=torch.sigmoid)
        weight = random(self.n_types, self.kernel_size, self.kernel_size, self.n_out, 4, 4, scale=0.3)
        beta_u, beta_a = (torch.zeros(self.n_out, dtype=dtype, device=device) for _ in range(2))
        inputs = {"pose": pose, "activation": activation, "weight": weight, "beta_u": beta_u, "beta_a": beta_a}
        leaves = [x.requires_grad_(self.backward) for x in inputs.values()]
        route = maps("reference" if self.contender == "compiled" else self.contender, self.routing)
        options = {"settings": self.settings} if self.routing == "em" else {}
        if self.contender == "compiled":
            route = compiled(route, self.backend)
        n_places = (self.size - self.kernel_size) // self.stride + 1
        d_pose = random(self.batch, self.n_out, n_places, n_places, 4, 4)
        d_activation = random(self.batch, self.n_out, n_places, n_places)

        def call() -> dict[str, Tensor]:
            made = route(*leaves, stride=self.stride, n_iters=self.n_iters, **options)
            results = {"pose": made.pose.detach(), "activation": made.activation.detach()}
            if not self.backward:
                return results
            gradients = torch.autograd.grad((made.pose, made.activation), leaves, (d_pose, d_activation))
            return results | {f"gradient of {name}": x for name, x in zip(inputs, gradients, strict=True)}

        return call


@dataclass(frozen=True)
class Votes:
    """Dynamic routing alone, of votes that a convolution made.

    Attributes:
        contender: "ours", "reference", or "floor" for the mean vote, squashed.
        compete: see :class:`torchcaps.layers.ConvVoteCaps`; "map" is DeepCaps' 3-D routing.
        batch: B.
        n_types: T.
        n_out: J.
        d_out: pose size of the upper capsules.
        size: H and W.
        n_iters: passes.
        backward: with the gradients of the votes.
    """

    contender: str = "ours"
    compete: str = "map"
    batch: int = 64
    n_types: int = 32
    n_out: int = 32
    d_out: int = 8
    size: int = 4
    n_iters: int = 3
    backward: bool = True

    def prepare(
        self, device: torch.device, dtype: torch.dtype = torch.float32, rounded: torch.dtype | None = None
    ) -> Call:
        """Make the votes, and return the call; they are first ``rounded`` to that dtype, if one is given."""
        random = _random(device, dtype, rounded)
        votes = random(self.batch, self.n_types, self.n_out, self.d_out, self.size, self.size)
        votes.requires_grad_(self.backward)
        d_pose = random(self.batch, self.n_out, self.size, self.size, self.d_out)
        route = dynamic_routing_3d if self.compete == "map" else locally_constrained_routing
        squash_all = squash_over_map if self.compete == "map" else partial(squash_with_length, dim=2)
        backend = "reference" if self.contender == "reference" else "auto"

        def call() -> dict[str, Tensor]:
            if self.contender == "floor":
                places = self.n_out * (self.size**2 if self.compete == "map" else 1)
                pose = squash_all(votes.sum(dim=1) / places)[0].movedim(2, 4)
            else:
                pose = route(votes, n_iters=self.n_iters, backend=backend).pose
            if not self.backward:
                return {"pose": pose}
            (gradient,) = torch.autograd.grad(pose, votes, d_pose)
            # Without routing it is one tensor, expanded: a convolution's gradient wants it written.
            return {"pose": pose.detach(), "gradient of votes": gradient.contiguous()}

        return call


@dataclass(frozen=True)
class Net:
    """A network: one step of training, with its optimizer; or its forward pass.

    Attributes:
        model: one of ``torchcaps.models.MODELS``.
        contender: how its layers route, see :func:`~benchmarks.contenders.take`; or "JAX" for a training step there.
        batch: images.
        image_shape: (channels, height, width).
        n_classes: of the model.
        precision: "32", or "bf16" for autocast.
        train: a step; else the forward pass, without gradients.
        n_iters: of every routing; None leaves it to the model.
        small: a network of the same kind with few channels, for tests.
        capturable: with an optimizer whose step a CUDA graph can hold.
        options: further ones of the model, as (name, value).
        frequencies: let large convolutions go by :func:`torchcaps.ops.spectral.spectral_conv2d`; else by torch.
    """

    model: str = "capsnet"
    contender: str = "ours"
    batch: int = 64
    image_shape: tuple[int, int, int] = (1, 28, 28)
    n_classes: int = 10
    precision: str = "32"
    train: bool = True
    n_iters: int | None = None
    small: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    frequencies: bool = True
    capturable: bool = False

    def prepare(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Call:
        """Make the network, its optimizer and one batch, and return the call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(self.model, self.image_shape, self.n_classes, **self._options())
            images = torch.rand(self.batch, *self.image_shape).to(device, dtype)
            labels = torch.randint(self.n_classes, (self.batch,)).to(device)
        if self.contender == JAX:
            by_jax_step = by_jax.step(model, images, labels)
            return lambda: {"loss": torch.tensor(by_jax_step())}
        take(model, self.contender)
        model = model.to(device, dtype).train(self.train)
        bf16 = torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")
        convolutions = nullcontext if self.frequencies else torchs_convolutions

        def forward() -> dict[str, Tensor]:
            with torch.no_grad(), bf16, convolutions():
                return {"scores": model(images).scores}

        if not self.train:
            return forward
        optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=self.capturable)

        def step() -> dict[str, Tensor]:
            optimizer.zero_grad()
            with bf16, convolutions():
                loss = _loss(model, model(images), images, labels)
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach()} | {
                f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None
            }

        return step

    def _options(self) -> dict[str, Any]:
        few: dict[str, dict[str, Any]] = {
            "capsnet": {"channels": 8, "n_types": 2, "decoder": (8,)},
            "matrix_capsnet": dict.fromkeys("ABCD", 2),
        }
        options = few.get(self.model.removesuffix("_small"), {}) if self.small else {}
        options = options | dict(self.options)
        return options if self.n_iters is None else options | {"n_iters": self.n_iters}


Work = Vectors | Maps | Votes | Routed | Net | InUse
KINDS = {kind.__name__: kind for kind in (Vectors, Maps, Votes, Routed, Net, InUse)}


def described(work: Work) -> dict[str, Any]:
    """In plain JSON; :func:`from_description` makes it again."""
    return {"kind": type(work).__name__} | asdict(work)


def from_description(content: dict[str, Any]) -> Work:
    """What :func:`described` described."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items() if k != "kind"}
    return KINDS[content["kind"]](**given)


def _loss(model: nn.Module, output: ModelOutput, images: Tensor, labels: Tensor) -> Tensor:
    """What the papers make small."""
    scores = output.scores if output.scores.dtype == torch.float64 else output.scores.float()
    if not output.capsules:
        return F.cross_entropy(scores, labels)
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        return spread_loss(scores, labels, margin=0.2)
    again = decoder(output.capsules[-1].pose, labels)
    return margin_loss(scores, labels) + 0.0005 * reconstruction_loss(again, images)


def _random(device: torch.device, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Callable[..., Tensor]:
    """Normal numbers, the same in every dtype and on every device; rounded to one first, if it is given."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        made = scale * torch.randn(*shape, generator=generator)
        made = made if change is None else change(made)
        return made.to(rounded or torch.float32).to(device, dtype)

    return random
