"""Couplings that no image changes: the controls beside which a routing has to show what it is for."""
