"""What may differ between one EM routing and another, and the two settings that have a name."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

from torchcaps.checks import check_choice, check_flag, check_positive

COMPETE = ("all", "positions")
STARTS = ("parents", "types")
#: The smallest normal number of float32, of which a floor must not be below.
SMALLEST = 2.0**-126


@dataclass(frozen=True)
class EMSettings:
    """Constants of EM routing. The defaults are the paper's, floors apart, which it does not mention.

    Attributes:
        compete: what a child chooses among in the E-step: "all" parents that see it, of all types at all
            positions (the paper's text); or, for each type of its own, the "positions" of that type that
            see it (the released code's convolutional layers). In dense routing there is one position, and
            under "positions" every child gives itself whole to every type; so there it wants "all".
        start: responsibilities before the first E-step: 1 over the number of "parents" that see the child,
            or 1 over the number of their "types".
        final_lambda: λ_t = final_lambda · (1 − lambda_decay^(t+1)), t = 0, 1 …, the inverse temperature.
        lambda_decay: see there.
        damping: share of the mean of the iteration before in the new one; before the first it is 0.
        variance_floor: added to every variance. Without it a parent with one child has variance 0.
        mass_floor: added to Σ_i R_ij a_i, so that a parent without children has a mean.
        cost_scale: factor of Σ_h log σ_h in the cost.
        beta_u_scale: factor of β_u in the cost.
        beta_a_scale: factor of β_a; negative where β_a is a price and not a benefit.
        normalize: multiply the mass in the cost by (number of parents) / (number of children), of the whole
            map, so that one λ and one β fit layers with many and with few children to a parent
            (Gritzman 2019, section 3).

    Example:
        >>> EMSettings(final_lambda=0.02).final_lambda
        0.02
    """

    compete: str = "all"
    start: str = "parents"
    final_lambda: float = 0.01
    lambda_decay: float = 0.95
    damping: float = 0.0
    variance_floor: float = 1e-6
    mass_floor: float = 1e-7
    cost_scale: float = 1.0
    beta_u_scale: float = 1.0
    beta_a_scale: float = 1.0
    normalize: bool = False

    def __post_init__(self) -> None:
        check_choice("compete", self.compete, COMPETE)
        check_choice("start", self.start, STARTS)
        check_flag("normalize", self.normalize)
        for name in _NUMBERS:
            value = getattr(self, name)
            # No tensor: compiled code would take its value for a constant, and give it no gradient.
            # Not math.isfinite, which the compiler refuses where it takes a setting for a variable.
            # Asked twice, as Dynamo of torch 2.6 takes no number for a Real.
            number = isinstance(value, (float, int)) or isinstance(value, Real)  # noqa: SIM101
            if isinstance(value, bool) or not number or not -math.inf < float(value) < math.inf:
                raise ValueError(f"{name} must be a finite number, got {value!r}")
            if not isinstance(value, (float, int)):  # a fraction, which tensors are not multiplied by
                object.__setattr__(self, name, float(value))
        for name in ("variance_floor", "mass_floor"):
            check_positive(name, getattr(self, name))
            if getattr(self, name) < SMALLEST:  # which compiled code takes for 0
                raise ValueError(f"{name} must be at least {SMALLEST:.3g}, got {getattr(self, name)!r}")
        for name in ("damping", "lambda_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")

    def lambda_at(self, t: int) -> float:
        """Compute λ of iteration t, the first of which is 0."""
        return self.final_lambda * (1 - self.lambda_decay ** (t + 1))


_FIELDS = tuple(field.name for field in fields(EMSettings))
_NUMBERS = tuple(field.name for field in fields(EMSettings) if field.type == "float")
_RELEASED = EMSettings(
    compete="positions",
    start="types",
    damping=0.1,
    variance_floor=0.0005,
    cost_scale=2.0,
    beta_u_scale=math.log(2 * math.pi) + 1,
    beta_a_scale=-5000.0,
)
#: Settings by name, for convolutional and for dense routing. "paper" is what the paper prints, with the authors'
#: λ from OpenReview. "released" is what their released code does, in its convolutional and in its class layer.
EM_SETTINGS = {
    "paper": (EMSettings(), EMSettings()),
    "released": (_RELEASED, replace(_RELEASED, compete="all", final_lambda=0.0025, mass_floor=1e-5)),
}


def em_settings(settings: str | EMSettings, *, dense: bool, **changes: Any) -> EMSettings:
    """Look up named settings, or take given ones, and change some of their fields.

    Args:
        settings: one of :data:`EM_SETTINGS`, or settings.
        dense: every parent sees every child.
        changes: fields that are to differ.

    Raises:
        ValueError: an unknown name or field, or a value out of range.
    """
    if not isinstance(settings, EMSettings):
        check_choice("settings", settings, EM_SETTINGS)
        of_maps, of_all = EM_SETTINGS[settings]  # some versions of torch.compile know no truth values as indices
        settings = of_all if dense else of_maps
    for name in changes:
        check_choice("a setting of EM routing", name, _FIELDS)
    return replace(settings, **changes) if changes else settings
