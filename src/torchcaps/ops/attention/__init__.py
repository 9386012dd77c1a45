"""Attention routing (Choi, Seo, Im, Kang 2019)."""
