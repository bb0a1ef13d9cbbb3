"""Bytes that tables take on devices: weights, optimizer state, buffers of a batch."""
