"""Scores, held-out gaps and the baselines that geonp is compared with."""
