"""Solvers without search: greedy, random, FlexShard, and the planner of TorchRec."""
