"""The convolutional networks that capsules are compared with."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import as_number, check_at_least, check_flag, check_list
from torchcaps.layers import Conv2d, Standardize
from torchcaps.layers.convolution import channels_last
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, require_images
from torchcaps.types import ModelOutput


class BaselineCNN(nn.Module):
    """Convolutions, two fully connected layers, dropout, logits.

    Args:
        image_shape: (channels, height, width).
        n_classes: number of classes.
        channels: filters of each convolution (stride 1, same size).
        hidden: widths of the fully connected layers.
        kernel_sizes: of each convolution, odd; 5×5 by default.
        pool: 2×2 max-pooling after each convolution; the paper has none.
        dropout: before the logits.
        standardize: bring each image to zero mean and unit variance first.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        n_classes: int,
        channels: tuple[int, ...],
        hidden: tuple[int, ...],
        *,
        kernel_sizes: tuple[int, ...] | None = None,
        pool: bool = False,
        dropout: float = 0.5,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        check_flag("standardize", standardize)
        check_flag("pool", pool)
        dropout = as_number("dropout", dropout, 0)
        if dropout > 1:
            raise ValueError(f"dropout must be at most 1, got {dropout}")
        check_at_least("n_classes", n_classes, 1)
        for name, values in {"channels": channels, "hidden": hidden}.items():
            check_list(name, values)
            if not values:
                raise ValueError(f"{name} must list a layer at least, got {values!r}")
        if kernel_sizes is not None:
            check_list("kernel_sizes", kernel_sizes)
        image_shape = as_image_shape(image_shape)
        self.image_shape, self.n_classes, self.pool, self.dropout = image_shape, n_classes, pool, dropout
        self.standardize = Standardize() if standardize else nn.Identity()
        sizes, kernels = (image_shape[0], *channels), kernel_sizes or (5,) * len(channels)
        if len(kernels) != len(channels) or not all(k % 2 for k in kernels):
            raise ValueError(
                f"kernel_sizes must be {len(channels)} odd numbers, one for each of channels, got {kernels}"
            )
        self.convs = nn.ModuleList(
            Conv2d(a, b, k, padding=k // 2) for (a, b), k in zip(itertools.pairwise(sizes), kernels, strict=True)
        )
        shrink = 2 ** len(channels) if pool else 1
        height, width = image_shape[1] // shrink, image_shape[2] // shrink
        if height < 1 or width < 1:
            raise ValueError(f"image_shape must be at least {shrink}×{shrink} to be pooled, got {image_shape}")
        sizes = (channels[-1] * height * width, *hidden)
        self.dense = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.logits = nn.Linear(hidden[-1], n_classes)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor) -> ModelOutput:
        """Logits ``[B, J]`` of images ``[B, C, H, W]``.

        Raises:
            ValueError: images of another shape than the model was made for.
        """
        require_images(x, self.image_shape)
        x = channels_last(self.standardize(x))
        for conv in self.convs:
            x = conv(x)
            x = F.relu(F.max_pool2d(x, 2) if self.pool else x)  # pooled first: the same, of a quarter as many
        x = x.flatten(1)
        for layer in self.dense:
            x = F.relu(layer(x))
        return ModelOutput(self.logits(F.dropout(x, self.dropout, self.training)))


def baseline_cnn(
    image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, dropout: float = 0.5
) -> BaselineCNN:
    """Build the paper's baseline: 256, 256, 128 channels, FC 328 and 192; 35.4 M parameters on 28×28.

    Source: Sabour et al. 2017, section 5. (Its parameter count holds with padding that keeps the
    size, as here.)
    """
    return BaselineCNN(image_shape, n_classes, (256, 256, 128), (328, 192), dropout=dropout)


def norb_cnn(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, dropout: float = 0.5, standardize: bool = True
) -> BaselineCNN:
    """Build the baseline of the matrix capsules: 32 and 64 channels, pooled, FC 1024; 4.2 M parameters on 32×32.

    Source: Hinton, Sabour, Frosst 2018, section 5 (5.2 % error on small NORB).
    """
    return BaselineCNN(image_shape, n_classes, (32, 64), (1024,), pool=True, dropout=dropout, standardize=standardize)


def multimnist_cnn(
    image_shape: tuple[int, int, int] = (1, 36, 36), n_classes: int = 10, dropout: float = 0.0
) -> BaselineCNN:
    """Build the baseline for overlapping digits: 512 channels 9×9, 256 of 5×5, pooled, FC 1024.

    It has 24.56 M parameters on 36×36. Its logits are for the sigmoid cross-entropy, one for each class.

    Source: Sabour et al. 2017, section 6 (8.1 % error). (Its parameter count holds with padding that
    keeps the size, as here; of dropout it says nothing.)
    """
    kernels = (9, 5)
    return BaselineCNN(image_shape, n_classes, (512, 256), (1024,), kernel_sizes=kernels, pool=True, dropout=dropout)


def matched_cnn(
    image_shape: tuple[int, int, int] = (1, 28, 28),
    n_classes: int = 10,
    n_parameters: int = 6_804_384,
    dropout: float = 0.5,
    standardize: bool = False,
) -> BaselineCNN:
    """Build a pooled CNN, as wide as ``n_parameters`` allows.

    Three convolutions, each twice as wide as the one before, take about half of the parameters; one
    fully connected layer takes what remains, as near as one neuron allows.

    Args:
        image_shape: (channels, height, width).
        n_classes: number of classes.
        n_parameters: to come near to, such as a capsule network's. The default is that of CapsNet
            without its decoder, which takes no part in classification.
        dropout: before the logits.
        standardize: bring each image to zero mean and unit variance first.

    Raises:
        ValueError: fewer parameters than the smallest such network has.
    """
    check_at_least("n_parameters", n_parameters, 1)

    def made(width: int, hidden: int) -> BaselineCNN:
        channels = (width, 2 * width, 4 * width)
        return BaselineCNN(
            image_shape, n_classes, channels, (hidden,), pool=True, dropout=dropout, standardize=standardize
        )

    width = max(1, round((n_parameters / 500) ** 0.5))  # the convolutions' 250 width² take about half
    while True:
        smallest = count_parameters(made(width, 1))  # which draws: a seed gives the network that it always gave
        hidden = 1 + round((n_parameters - smallest) / (count_parameters(made(width, 2)) - smallest))
        if hidden >= 1:
            return made(width, hidden)
        if width == 1:
            raise ValueError(f"n_parameters must be at least {smallest} for {image_shape} images, got {n_parameters}")
        width -= 1  # of large images even one neuron sees much


def count_parameters(model: nn.Module) -> int:
    """Number of trainable numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
