"""Solvers that learn. Needs torch."""
