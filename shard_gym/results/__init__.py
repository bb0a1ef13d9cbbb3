"""Results: plans scored, kept with what made them, and scored again."""
