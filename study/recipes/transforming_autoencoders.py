"""Transforming Auto-encoders (Hinton, Krizhevsky, Wang, ICANN 2011), and templates after Tieleman's thesis (2014).

No labels are shown to any of them. The paper does not say how long it trained, nor with which learning rate.
"""

from __future__ import annotations
