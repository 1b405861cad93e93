"""Measurements at places: tables, squares around them, and `interpolate` to a grid or to other places.

It may import `fill` and everything to the left of it.
"""
