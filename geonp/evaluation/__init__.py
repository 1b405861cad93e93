"""Scores, hold-outs shaped like real gaps, and the classical methods to compare with."""
