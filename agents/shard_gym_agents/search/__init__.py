"""Solvers that search: local search, beam, exact ones, and `auto`."""
