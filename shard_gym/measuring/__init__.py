"""Measured costs: the operator on the hardware at hand, campaigns, measurements as columns, and fits to them."""
