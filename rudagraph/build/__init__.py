"""Kernel text to machine code: the only part of the package that imports Numba."""
