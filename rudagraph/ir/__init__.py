"""The only program representation: straight-line SSA over tensors, as text a person can read."""
