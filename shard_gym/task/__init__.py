"""Tasks: tables, devices, links and constraints; frozen suites of them, and tasks of your own tables."""
