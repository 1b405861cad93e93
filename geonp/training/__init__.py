"""Recipes, tasks and the training loop."""
