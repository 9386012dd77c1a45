"""Which processor this is, from what systems say of it."""

from __future__ import annotations

import platform

import pytest

from torchcaps.ops.backends import processor


@pytest.mark.parametrize(
    ("by_platform", "lines", "family"),
    [
        ("x86_64", ("vendor_id\t: AuthenticAMD", "cpu family\t: 25", "model\t\t: 17"), 25),
        ("", ("vendor_id\t: AuthenticAMD", "cpu family\t: 26"), 26),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", (), 26),
        ("Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", (), 0),
        ("x86_64", ("vendor_id\t: GenuineIntel", "cpu family\t: 6"), 0),
        ("arm", (), 0),
    ],
)
def test_family(monkeypatch: pytest.MonkeyPatch, by_platform: str, lines: tuple[str, ...], family: int) -> None:
    monkeypatch.setattr(platform, "processor", lambda: by_platform)
    monkeypatch.setattr(processor, "_told", lambda: lines)
    assert processor.amd_family() == family
