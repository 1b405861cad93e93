"""Recipes, the training loop, its objectives and optimisers.

It may import `inference` and everything to the left of it in the layer rule.
"""
