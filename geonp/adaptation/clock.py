"""Time and steps of an adaptation."""

from __future__ import annotations

import time


class Clock:
    """Progress of the search, then of the training: by steps if their number is given, otherwise by time."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.start = self.begun = time.monotonic()
        self.budget_s, self.steps = 60 * minutes, steps

    @property
    def minutes(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self.start) / 60

    def begin(self, reserve_s: float) -> None:
        """Begin the training, which ends `reserve_s` before the time is up."""
        self.begun = time.monotonic()
        self.budget_s -= reserve_s

    def done(self, step: int) -> float:
        """Fraction done after `step` steps of training; 1 at the end."""
        if self.steps is not None:
            return step / self.steps
        left = self.start + self.budget_s - self.begun
        return min((time.monotonic() - self.begun) / left, 1.0) if left > 0 else 1.0
