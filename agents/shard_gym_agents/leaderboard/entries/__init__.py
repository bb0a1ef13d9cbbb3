"""Entries: runs of one agent with a card that says whose they are, packed so that anybody can check them again."""
