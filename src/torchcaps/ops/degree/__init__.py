"""Degree-centrality routing (Venkataraman, Balasubramanian, Sarma 2020)."""
