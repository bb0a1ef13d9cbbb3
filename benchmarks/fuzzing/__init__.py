"""Malformed input for whatever reads or takes input: `targets` are what is tried, `mutations` how input is spoiled."""
