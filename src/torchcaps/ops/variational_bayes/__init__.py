"""Variational-Bayes routing (De Sousa Ribeiro, Leontidis, Kollias 2020)."""
