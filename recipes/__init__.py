"""Training recipes: data only."""
