"""Sealed rounds: tasks of a suite's distribution that nobody has seen, until all agents have planned them.

`folder` has the files of a round and its stages, `sealed` its secret and the tasks that are made of it, `contest` the
runs of the agents, `closing` what is replayed and told at the end.
"""
