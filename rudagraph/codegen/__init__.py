"""Ops -> kernel source text; never compiles, never imports a compiler."""
