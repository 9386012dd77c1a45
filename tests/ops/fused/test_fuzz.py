"""Any shape and any values: equal by the pairing rule wherever the reference is finite."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.impls import needs_cpu

pytestmark = needs_cpu

sizes = st.tuples(*(st.integers(1, most) for most in (35, 40, 12, 10, 20)))
options = st.fixed_dictionaries(
    {
        "n_iters": st.integers(1, 4),
        "leaky": st.booleans(),
        "gradient": st.sampled_from(["full", "last"]),
        "return_coupling": st.booleans(),
    }
)
