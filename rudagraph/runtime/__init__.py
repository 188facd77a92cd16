"""From machine code and a plan to a running step; needs no compiler."""
