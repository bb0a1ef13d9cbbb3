"""Other people's agents, each in processes of its own that can harm nothing but its own row.

The leaderboard (`host`) starts one `nursery`, which forks a `warden` for each agent behind the walls of `jail`, by the
`rules` of the run. The warden forks the agent's process (`inside`), passes questions on, counts what it uses, and ends
whatever it leaves. At isolation `full` the agent sees files, processes and a network of its own; at `limits` it is
held by limits and by its warden. `frames` and `answers` say what is believed of what comes back.
"""
