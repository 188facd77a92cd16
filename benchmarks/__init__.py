"""Benchmarks: peers and rudagraph interleaved on the same work, checked before they are timed."""
