"""Plans: where every table goes, what a plan must keep to, random plans, and what moves between two."""
