"""Everything that routes, under one form: the properties in ``test_properties.py`` hold for all of it.

A new routing, layer or backend adds a line to :data:`SUBJECTS` and is tested at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.backends import available
from torchcaps import layers, models, ops
from torchcaps.layers import DynamicRouting, EMRouting, Routing
from torchcaps.ops import Capsules
from torchcaps.testing import Subject

#: Sizes that share no factor, so that no two axes can be mistaken for each other.
B, I, J, D_IN, D_OUT = 3, 7, 4, 5, 6  # noqa: E741


class Op(nn.Module):
    """An operation with its tensors as parameters."""

    def __init__(
        self, function: Callable[..., Capsules], parameters: Mapping[str, Tensor | None], **options: Any
    ) -> None:
        super().__init__()
        self.function, self.options = function, options
        self.tensors = nn.ParameterDict({k: nn.Parameter(v) for k, v in parameters.items() if v is not None})

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        return self.function(x, **self.tensors, **self.options, **options)


class FromNumbers(nn.Module):
    """Matrix capsules of 17 numbers, ``[..., 17]``: the pose, and the logit of the activation."""

    def __init__(self, module: nn.Module, *, matrix: bool = True) -> None:
        super().__init__()
        self.module, self.matrix = module, matrix

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        pose, activation = x[..., :-1], x[..., -1].sigmoid()
        return self.module(Capsules(pose.unflatten(-1, (4, 4)) if self.matrix else pose, activation), **options)


class EM(Op):
    """EM routing with its tensors as parameters."""

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        pose, activation = x[..., :-1], x[..., -1].sigmoid()
        inner = (J, 4, 4) if self.function is ops.em_routing_from_votes else (4, 4)
        return self.function(pose.unflatten(-1, inner), activation, **self.tensors, **self.options, **options)


class LastCapsules(nn.Module):
    """A model, seen as its class capsules."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        return self.model(x, **options).capsules[-1]


def routing(bias: bool = False, initial_logits: bool = False, **options: Any) -> Callable[[], nn.Module]:
    """Dynamic routing from poses."""

    def make() -> nn.Module:
        parameters = {
            "weight": torch.randn(I, J, D_IN, D_OUT),
            "bias": torch.randn(J, D_OUT) if bias else None,
            "initial_logits": torch.randn(I, J) if initial_logits else None,
        }
        return Op(ops.dynamic_routing, parameters, **options)

    return make


class Masked(Op):
    """Dynamic routing of the lower capsules whose first number says that they are there."""

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        return super().forward(x, mask=x[..., 0].detach() > -0.5, **options)


def masked(rows: int = I, **options: Any) -> Callable[[], nn.Module]:
    """Dynamic routing from poses, some of which are masked."""
    return lambda: Masked(ops.dynamic_routing, {"weight": torch.randn(rows, J, D_IN, D_OUT)}, **options)


def em(*size: int, function: Callable[..., Capsules] = ops.em_routing, **options: Any) -> Callable[[], nn.Module]:
    """EM routing from poses, with weights of ``size`` (none: from votes)."""

    def make() -> nn.Module:
        parameters = {"beta_u": torch.randn(J), "beta_a": torch.randn(J)}
        if size:
            parameters["weight"] = torch.randn(*size, J, 4, 4)
        # A larger λ than the paper's: its activations hardly move with the votes of so few children.
        return EM(function, parameters, **{"final_lambda": 1.0, "variance_floor": 0.1, **options})

    return make


def em_layer(layer: type[nn.Module], *sizes: Any, **options: Any) -> Callable[[], nn.Module]:
    """A layer with EM routing."""
    return lambda: FromNumbers(layer(*sizes, routing=EMRouting(variance_floor=0.1), **options))


def small_matrix_capsnet(**options: Any) -> nn.Module:
    """Matrix capsules for oblong images with two channels."""
    return LastCapsules(
        models.MatrixCapsNet((2, 21, 25), J, A=3, B=2, C=3, D=2, **options, routing=EMRouting(variance_floor=0.1))
    )


def normalized_matrix_capsnet() -> nn.Module:
    """The same, as evaluated: in training batch normalization makes images depend on each other."""
    return small_matrix_capsnet(stem=({"channels": 4},), normalize=True).eval()


def conv_caps(**options: Any) -> nn.Module:
    """Convolutional capsules with an oblong kernel."""
    return layers.ConvCaps(2, J, D_IN, D_OUT, (2, 3), **{"stride": 2, **options})


def behind_a_backbone() -> nn.Module:
    """Capsules behind a backbone for oblong colour images."""
    backbone = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU())
    return LastCapsules(models.BackboneCapsNet(backbone, (2, 9, 12), J, n_types=2, d_primary=4, d_class=5))


def each_layer(
    routing: Routing, name: str = "", *, d_in: int = D_IN, d_out: int = D_OUT, **properties: Any
) -> list[Subject]:
    """Dense, convolutional and class capsules of poses alone, as they are evaluated."""
    makers: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
        "DenseCaps": ((I, d_in), lambda: layers.DenseCaps(I, J, d_in, d_out, routing=routing)),
        "ConvCaps": ((2, 5, 6, d_in), lambda: layers.ConvCaps(2, J, d_in, d_out, (2, 3), stride=2, routing=routing)),
        "ClassCaps": ((2, 3, 4, d_in), lambda: layers.ClassCaps(2, J, d_in, d_out, routing=routing)),
    }
    return [
        Subject(f"{layer}-{name or routing.name}", shape, lambda make=make: make().eval(), **properties)
        for layer, (shape, make) in makers.items()
    ]


def fixed(n_in: int = I, **options: Any) -> Callable[[], nn.Module]:
    """Fixed couplings, from poses."""

    def make() -> nn.Module:
        coupling = torch.rand(I, J) + 0.1 if "coupling" in options else None
        parameters = {
            "weight": torch.randn(n_in, J, D_IN, D_OUT),
            "bias": torch.randn(J, D_OUT),
            "coupling": None if coupling is None else coupling / coupling.sum(dim=1, keepdim=True),
        }
        return Op(ops.fixed_routing, parameters)

    return make


def self_attention(prior_bias: bool = True, **options: Any) -> Callable[[], nn.Module]:
    """Self-attention routing from poses."""

    def make() -> nn.Module:
        # Small votes: of long ones its squash rounds lengths to 1.
        parameters = {
            "weight": 0.1 * torch.randn(I, J, D_IN, D_OUT),
            "prior_bias": torch.randn(I, J) if prior_bias else None,
        }
        return Op(ops.self_attention_routing, parameters, **options)

    return make


def inverted_attention(**options: Any) -> Callable[[], nn.Module]:
    """Inverted attention from vectors; normalization and scores are the same for all upper capsules."""
    return lambda: Op(ops.inverted_attention_routing, {"weight": torch.randn(I, J, D_IN, D_OUT)}, **options)


def attention_capsnet(schedule: str) -> nn.Module:
    """A small network of inverted attention for oblong images, as evaluated."""
    sizes = {"trunk": "simple", "channels": 16, "n_types": 2, "dense": (3,)}
    return LastCapsules(models.AttentionCapsNet((2, 19, 17), J, schedule=schedule, **sizes)).eval()


class OwnRouting(Op):
    """Self-routing with its tensors as parameters."""

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        return self.function(x[..., :-1], x[..., -1].sigmoid(), **self.tensors, **self.options, **options)


def own_routing(poses: bool = True) -> Callable[[], nn.Module]:
    """Self-routing from poses and the logits of activations."""

    def make() -> nn.Module:
        parameters = {
            "weight": torch.randn(I, J, D_IN, D_OUT) if poses else None,
            "route_weight": torch.randn(I, J, D_IN),
            "route_bias": torch.randn(I, J),
        }
        return OwnRouting(ops.self_routing, parameters, **({} if poses else {"weight": None}))

    return make


class VariationalBayes(Op):
    """Variational-Bayes routing with its tensors as parameters."""

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        numbers, activation = x[..., :-1], x[..., -1].sigmoid()
        if self.function is ops.variational_bayes_routing_from_votes:
            numbers = numbers.unflatten(-1, (J, D_OUT))
        return self.function(numbers, activation, **self.tensors, **self.options, **options)


def variational_bayes(
    *size: int, function: Callable[..., Capsules] = ops.variational_bayes_routing, **options: Any
) -> Callable[[], nn.Module]:
    """Variational-Bayes routing from vectors with weights of ``size`` (none: from votes), and logits of activations."""

    def make() -> nn.Module:
        parameters = {"beta_u": torch.randn(J), "beta_a": torch.randn(J)}
        if size:
            parameters["weight"] = torch.randn(*size, J, D_IN, D_OUT)
        return VariationalBayes(function, parameters, **options)

    return make


def degree() -> nn.Module:
    """Degree routing of small votes, from poses: of long ones squash rounds lengths to 1."""
    return Op(ops.degree_routing, {"weight": 0.1 * torch.randn(I, J, D_IN, D_OUT)})


def attention(n_types: int = I) -> Callable[[], nn.Module]:
    """Attention routing, from poses."""
    shapes = {
        "weight": (I, J, D_IN, D_OUT),
        "vote_bias": (I, J, D_OUT),
        "attention_weight": (I, n_types, J, D_OUT),
        "activation_weight": (J, D_OUT, D_OUT),
        "activation_bias": (J, D_OUT),
    }
    return lambda: Op(ops.attention_routing, {name: torch.randn(shape) / 4 for name, shape in shapes.items()})


class HeinsenMatrices(Op):
    """Heinsen's routing of matrices, from vectors and the logits of activations, with its tensors as parameters."""

    def forward(self, x: Tensor, **options: Any) -> Capsules:
        return self.function(x[..., :-1], x[..., -1].sigmoid(), **self.tensors, **self.options, **options)


def heinsen_matrices(n_in: int = I) -> Callable[[], nn.Module]:
    """Heinsen's routing of matrices; with ``n_in`` of 1 its parameters are the same for all lower capsules."""

    def make() -> nn.Module:
        shapes = {"weight": (D_IN, D_OUT), "bias": (D_OUT,), "beta_use": (), "beta_ign": ()}
        return HeinsenMatrices(
            ops.heinsen_matrix_routing, {name: torch.randn(n_in, J, *shape) for name, shape in shapes.items()}
        )

    return make


def heinsen_vectors(d_out: int = D_OUT) -> Callable[[], nn.Module]:
    """Heinsen's routing of vectors."""
    shapes = {
        "activation_weight": (I, D_IN),
        "activation_bias": (I,),
        "vote_factor": (J, D_IN),
        "vote_weight": (D_IN, d_out),
        "vote_bias": (J, d_out),
        "prediction_weight": (d_out, D_IN),
        "prediction_factor": (J, D_IN),
        "prediction_bias": (J, D_IN),
        "similarity_weight": (I, J),
        "similarity_bias": (I, J),
        "beta_use": (I, J),
        "beta_ign": (I, J),
    }
    return lambda: Op(ops.heinsen_vector_routing, {name: torch.randn(shape) / 2 for name, shape in shapes.items()})


def heinsen_capsnet() -> nn.Module:
    """A small one for oblong images, as evaluated, with so many parts that bfloat16 changes no choice."""
    return LastCapsules(models.HeinsenCapsNet((2, 47, 39), J, channels=4, n_parts=10)).eval()


def variational_bayes_capsnet() -> nn.Module:
    """A small one for oblong images, as evaluated."""
    sizes: dict[str, Any] = {"A": 3, "B": 2, "C": 3, "D": 2, "d_pose": 4}
    return LastCapsules(models.VariationalBayesCapsNet((2, 21, 25), J, **sizes)).eval()


def self_routing_resnet() -> nn.Module:
    """A small one for oblong images, as evaluated."""
    sizes = {"n_types": 2, "d_pose": 5, "width": 2, "depth": 2}
    return LastCapsules(models.SelfRoutingResNet((2, 11, 13), J, **sizes)).eval()


def efficient_capsnet(trunk: str) -> nn.Module:
    """An Efficient-CapsNet for oblong colour images, as evaluated."""
    return LastCapsules(models.EfficientCapsNet((2, 23, 25), J, trunk=trunk, d_class=5, decoder=(6,))).eval()


def small_capsnet(**options: Any) -> nn.Module:
    """A CapsNet for oblong colour images."""
    sizes = {"channels": 4, "kernel_size": 3, "n_types": 2, "d_primary": 4, "d_class": 5, "decoder": (6,)}
    return LastCapsules(models.CapsNet((2, 9, 12), J, **(sizes | options)))


def small_segcaps() -> nn.Module:
    """A SegCaps for oblong images of two channels."""
    sizes = {"n_types": (1, 2, 3), "d_pose": (3, 4, 5), "d_class": 3, "kernel_size": 3, "decoder": (4,)}
    # Smaller weights than by default: these images are not 0 … 1, and votes would be so long that a rounding error
    # decides, eleven layers further, to which class a pixel is routed.
    return LastCapsules(models.SegCaps((2, 16, 8), J, **sizes, routing=DynamicRouting(weight_std=0.5)))


def small_deepcaps() -> nn.Module:
    """A DeepCaps for oblong images of two channels."""
    sizes = {"channels": 4, "n_types": 2, "d_pose": (2, 3, 3, 3), "d_class": 3, "decoder": (4,)}
    return LastCapsules(models.DeepCaps((2, 20, 9), J, **sizes).eval())


SUBJECTS = [
    *(
        Subject(
            f"dynamic{name}-{backend}",
            (I, D_IN),
            routing(backend=backend, **options),
            exact_gradient=name != "-last",
            couplings="less" if name == "-all-options" else "one",
            permutes=True,
        )
        for backend in available("dynamic")
        for name, options in {
            "": {},
            "-all-options": {"bias": True, "initial_logits": True, "leaky": True},
            "-one-iteration": {"n_iters": 1},
            "-last": {"bias": True, "backprop": "last"},
        }.items()
        if backend != "triton" or name in ("-all-options", "-last")  # its interpreter is slow
    ),
    *(
        Subject(f"dynamic-masked-{backend}", (I, D_IN), masked(backend=backend), couplings="other", permutes=True)
        for backend in available("dynamic")
    ),
    Subject("dynamic-masked-shared", (I, D_IN), masked(1), couplings="other"),
    *each_layer(DynamicRouting(shared=True, learned_logits=True), "dynamic-shared"),
    *each_layer(DynamicRouting(shared="pairs", drawn_logits=40), "dynamic-pairs"),
    Subject("dynamic-from-votes", (I, J, D_OUT), lambda: Op(ops.dynamic_routing_from_votes, {})),
    Subject(
        "PrimaryCaps",
        (3, 6, 9),
        lambda: layers.PrimaryCaps(3, 2, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        couplings="other",
    ),
    Subject("DenseCaps", (I, D_IN), lambda: layers.DenseCaps(I, J, D_IN, D_OUT)),
    Subject(
        "DenseCaps-map",
        (2, 3, 4, D_IN),
        lambda: layers.DenseCaps(24, J, D_IN, D_OUT, routing=DynamicRouting(learned_logits=True)),
    ),
    Subject("ConvCaps", (2, 5, 6, D_IN), conv_caps),
    Subject(
        "ConvCaps-leaky",
        (2, 5, 6, D_IN),
        lambda: conv_caps(routing=DynamicRouting(leaky=True, learned_logits=True)),
        couplings="less",
    ),
    Subject("ConvCaps-padded", (2, 5, 6, D_IN), lambda: conv_caps(padding=(2, 1), stride=(1, 2))),
    *(
        Subject(
            f"ConvVoteCaps{name}",
            (2, 5, 6, D_IN),
            lambda options=options: layers.ConvVoteCaps(2, J, D_IN, D_OUT, (3, 2), **options),
            couplings="less" if name == "-leaky" else "one",
            exact_gradient=name != "-last",
        )
        for name, options in {
            "": {},
            "-same": {"stride": (2, 1), "padding": "same", "shared": False},
            "-leaky": {"padding": (1, 0), "routing": DynamicRouting(leaky=True, weight_std=0.3)},
            "-last": {"routing": DynamicRouting(backprop="last")},
        }.items()
    ),
    *(
        Subject(
            f"ConvVoteCaps-map-{n_iters}",
            (2, 5, 6, D_IN),
            lambda n_iters=n_iters: layers.ConvVoteCaps(
                2, J, D_IN, D_OUT, (3, 2), compete="map", n_places=15, routing=DynamicRouting(n_iters)
            ),
            couplings="other",  # they sum to one over types and places together
        )
        for n_iters in (1, 3)
    ),
    Subject(
        "ConvVoteCaps-one-iteration",
        (2, 5, 6, D_IN),
        lambda: layers.ConvVoteCaps(2, J, D_IN, D_OUT, 2, routing=DynamicRouting(1)),
    ),
    Subject("ConvVoteCaps-one-type", (2, 5, 6, D_IN), lambda: layers.ConvVoteCaps(2, 1, D_IN, D_OUT, 2, shared=False)),
    *(
        Subject(
            f"DeconvVoteCaps{'-shared' * shared}",
            (2, 3, 4, D_IN),
            lambda shared=shared: layers.DeconvVoteCaps(2, J, D_IN, D_OUT, (3, 2), stride=(2, 1), shared=shared),
        )
        for shared in (True, False)
    ),
    Subject(
        "locally-constrained",
        (2, J, D_OUT, 2, 3),
        lambda: Op(ops.locally_constrained_routing, {"bias": torch.randn(J, D_OUT)}),
    ),
    Subject(
        "dynamic-3d",
        (2, J, D_OUT, 2, 3),
        lambda: Op(ops.dynamic_routing_3d, {"bias": torch.randn(J, D_OUT)}),
        couplings="other",  # they sum to one over types and places together
    ),
    Subject("CapsNet", (2, 9, 12), small_capsnet),
    Subject("SegCaps", (2, 16, 8), small_segcaps),
    Subject("DeepCaps", (2, 20, 9), small_deepcaps),
    Subject("BackboneCapsNet", (2, 9, 12), behind_a_backbone),
    Subject(
        "CapsNet-stacked", (2, 9, 12), lambda: small_capsnet(hidden=({"n_types": 3, "d_out": 4, "kernel_size": 2},))
    ),
    *(
        Subject(
            f"em{name}-{backend}",
            (I, 17),
            em(I, backend=backend, **options),
            lengths=False,
            exact_gradient=name != "-last",
            permutes=True,
        )
        for backend in available("em")
        for name, options in {
            "": {},
            "-released": {"settings": "released", "final_lambda": 0.01},
            "-one-iteration": {"n_iters": 1},
            "-last": {"backprop": "last"},
        }.items()
        if backend != "triton" or name == "-released"
    ),
    Subject("em-from-votes", (I, J * 16 + 1), em(function=ops.em_routing_from_votes, normalize=True), lengths=False),
    *(
        Subject(
            f"em-conv-{backend}{name}",
            (2, 5, 6, 17),
            em(2, 2, 3, function=ops.conv_em_routing, backend=backend, **options),
            lengths=False,
            couplings="other",
        )
        for backend in available("em")
        for name, options in {"-strided": {"stride": 2}, "-positions": {"compete": "positions"}}.items()
        if backend != "triton"
    ),
    Subject(
        "MatrixPrimaryCaps",
        (3, 6, 9),
        lambda: layers.MatrixPrimaryCaps(3, 2, kernel_size=(2, 3), stride=(2, 1)),
        lengths=False,
        couplings="other",
    ),
    Subject("DenseCaps-em", (I, 17), em_layer(layers.DenseCaps, I, J, 16, 16), lengths=False),
    Subject(
        "ConvCaps-em", (2, 5, 6, 17), em_layer(layers.ConvCaps, 2, J, 16, 16, (2, 3)), lengths=False, couplings="other"
    ),
    Subject(
        "ConvCaps-em-padded",
        (2, 3, 4, 17),
        em_layer(layers.ConvCaps, 2, J, 16, 16, (2, 3), padding=(1, 2), stride=(1, 2)),
        lengths=False,
        couplings="other",
    ),
    Subject(
        "ClassCaps-em", (2, 3, 4, 17), em_layer(layers.ClassCaps, 2, J, 16, 16, coordinates="column"), lengths=False
    ),
    Subject(
        "ClassCaps-vector",
        (2, 3, 4, 17),
        lambda: FromNumbers(
            layers.ClassCaps(2, J, 16, 16, coordinates="row", routing=EMRouting(pose="vector", variance_floor=0.1)),
            matrix=False,
        ),
        lengths=False,
    ),
    Subject(
        "ClassCaps-dynamic",
        (2, 3, 4, D_IN),
        lambda: layers.ClassCaps(2, J, D_IN, D_OUT, routing=DynamicRouting(learned_logits=True)),
    ),
    Subject("fixed", (I, D_IN), fixed(), permutes=True),
    Subject("fixed-drawn", (I, D_IN), fixed(coupling=True), permutes=True),
    Subject("fixed-shared", (I, D_IN), fixed(n_in=1)),
    Subject("fixed-shared-drawn", (I, D_IN), fixed(n_in=1, coupling=True)),
    *each_layer(layers.UniformRouting()),
    *each_layer(layers.UniformRouting(shared=True), "shared"),
    *each_layer(layers.RandomRouting(0.1, 2.0)),
    *each_layer(layers.ElementwiseRouting(), d_in=D_OUT, lengths=False, couplings="other"),
    Subject("self-attention", (I, D_IN), self_attention(), couplings="other", permutes=True),
    Subject("self-attention-lower", (I, D_IN), self_attention(prior_bias=False, scale="lower"), permutes=True),
    *each_layer(layers.SelfAttentionRouting(weight_std=0.05), couplings="other"),
    *(
        Subject(
            f"inverted-attention-{n_iters}",
            (I, D_IN),
            inverted_attention(n_iters=n_iters),
            lengths=False,
            permutes=True,
        )
        for n_iters in (1, 3)
    ),
    *each_layer(layers.InvertedAttentionRouting(2), d_in=16, d_out=16, lengths=False),
    *each_layer(layers.InvertedAttentionRouting(2, pose="vector"), "inverted-vectors", lengths=False),
    *(
        Subject(
            f"AttentionCapsNet-{schedule}",
            (2, 19, 17),
            lambda schedule=schedule: attention_capsnet(schedule),
            lengths=False,
        )
        for schedule in ("concurrent", "sequential")
    ),
    *(
        Subject(f"self-routing{name}", (I, D_IN + 1), own_routing(**options), lengths=False, permutes=True)
        for name, options in {"": {}, "-without-poses": {"poses": False}}.items()
    ),
    *(
        Subject(
            subject.name,
            (*subject.shape[:-1], D_IN + 1),
            lambda make=subject.make: FromNumbers(make(), matrix=False),
            lengths=False,
        )
        for subject in each_layer(layers.SelfRouting())
    ),
    *(
        Subject(
            f"variational-bayes-from-votes-{n_iters}",
            (I, J * D_OUT + 1),
            variational_bayes(function=ops.variational_bayes_routing_from_votes, n_iters=n_iters),
            lengths=False,
        )
        for n_iters in (1, 3)
    ),
    Subject("variational-bayes", (I, D_IN + 1), variational_bayes(I), lengths=False, permutes=True),
    Subject(
        "variational-bayes-conv",
        (2, 5, 6, D_IN + 1),
        variational_bayes(2, 2, 3, function=ops.conv_variational_bayes_routing, stride=(2, 1)),
        lengths=False,
        couplings="other",
    ),
    *(
        Subject(
            subject.name,
            (*subject.shape[:-1], 17),
            lambda make=subject.make: FromNumbers(make()),
            lengths=False,
            couplings="other" if "ConvCaps" in subject.name else "one",
        )
        for subject in each_layer(layers.VariationalBayesRouting(), d_in=16, d_out=16)
    ),
    *(
        Subject(
            subject.name,
            (*subject.shape[:-1], D_IN + 1),
            lambda make=subject.make: FromNumbers(make(), matrix=False),
            lengths=False,
            couplings="other" if "ConvCaps" in subject.name else "one",
        )
        for subject in each_layer(
            layers.VariationalBayesRouting(2, pose="vector", normalize=False), "variational-bayes-vectors"
        )
    ),
    Subject("degree", (I, D_IN), degree, couplings="other", permutes=True),
    *each_layer(layers.DegreeRouting(weight_std=0.1), couplings="other"),
    Subject("attention", (I, D_IN), attention(), lengths=False, couplings="other"),
    Subject("attention-types", (I, D_IN), attention(1), lengths=False, couplings="other"),
    *each_layer(layers.AttentionRouting(), lengths=False, couplings="other"),
    Subject("heinsen-matrix", (I, D_IN + 1), heinsen_matrices(), lengths=False, permutes=True),
    Subject("heinsen-matrix-shared", (I, D_IN + 1), heinsen_matrices(1), lengths=False),
    Subject("heinsen-vector", (I, D_IN), heinsen_vectors(), lengths=False),
    Subject("heinsen-vector-scores", (I, D_IN), heinsen_vectors(1), lengths=False),
    *(
        Subject(subject.name, (*subject.shape[:-1], 17), lambda make=subject.make: FromNumbers(make()), lengths=False)
        for shared in (False, True)
        for subject in each_layer(
            layers.HeinsenMatrixRouting(shared=shared),
            f"heinsen-matrix{'-shared' * shared}",
            d_in=16,
            d_out=16,
        )
    ),
    *(
        subject
        for shared in (False, True)
        for subject in each_layer(
            layers.HeinsenVectorRouting(shared=shared), f"heinsen-vector{'-shared' * shared}", lengths=False
        )
    ),
    Subject("HeinsenCapsNet", (2, 47, 39), heinsen_capsnet, lengths=False),
    Subject("VariationalBayesCapsNet", (2, 21, 25), variational_bayes_capsnet, lengths=False),
    Subject("SelfRoutingResNet", (2, 11, 13), self_routing_resnet, lengths=False),
    Subject(
        "DepthwisePrimaryCaps",
        (6, 6, 9),
        lambda: layers.DepthwisePrimaryCaps(6, 3, (3, 2), stride=(2, 1)),
        couplings="other",
    ),
    *(
        Subject(
            f"EfficientCapsNet-{trunk}", (2, 23, 25), lambda trunk=trunk: efficient_capsnet(trunk), couplings="other"
        )
        for trunk in ("mnist", "smallnorb")
    ),
    Subject("MatrixCapsNet", (2, 21, 25), small_matrix_capsnet, lengths=False),
    Subject("MatrixCapsNet-normalized", (2, 21, 25), normalized_matrix_capsnet, lengths=False),
]
