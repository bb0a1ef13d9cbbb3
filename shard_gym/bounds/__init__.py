"""Lower bounds: what no plan of a task can beat."""
