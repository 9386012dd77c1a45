"""The same as every test of the library has."""

from tests.conftest import _deterministic, shared_mnist, shared_smallnorb

__all__ = ["_deterministic", "shared_mnist", "shared_smallnorb"]
