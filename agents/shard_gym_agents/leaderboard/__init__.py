"""The leaderboard: agents on suites, each in a process of its own, ranked by the plans that they gave."""
