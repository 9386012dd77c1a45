"""Tables of Dynamic Routing Between Capsules (Sabour, Frosst, Hinton 2017)."""

from __future__ import annotations

from torchcaps.experiments.tables.table import Row, Table

_SOURCE = "Sabour et al. 2017"


MNIST = Table(
    title="MNIST",
    source=f"{_SOURCE}, table 1",
    rows=(
        Row("CapsNet, 3 iterations, reconstruction", "mnist", 550_000, {"test_error": "0.25 ± 0.005"}),
        Row("baseline CNN", "mnist-cnn", 270_000, {"test_error": "0.39"}),
    ),
    note="The paper trains for some 640 epochs of 60,000 images; here 5,000 of these are held out for validation.",
)

FASHION_MNIST = Table(
    title="Fashion-MNIST",
    source="Not in the paper; its network and settings",
    rows=(Row("CapsNet", "fashion-mnist", 270_000),),
)

DIGITS = Table(
    title="The bundled digits",
    source="Not in the paper; scikit-learn's 1,797 images at 28×28, trained in minutes without a download",
    rows=(
        Row("small CapsNet", "digits", 14_000),
        Row("CNN with as many parameters as its capsules", "digits-cnn", 14_000),
        Row("three layers of capsules", "digits-stacked", 14_000),
        Row("two overlapping digits, both right", "digits-pairs", 39_000),
    ),
    note="There are 360 test images, so one image is 0.28 %: differences of a few tenths say little.",
)
