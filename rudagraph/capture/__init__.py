"""Capture: nn.Module + example batch -> one joint graph of forward and backward."""

from rudagraph.capture.capture import Capture, capture

__all__ = ["Capture", "capture"]
