"""Random faults on real processes, and what must be true afterwards: ``python -m tests.chaos``, ``make chaos``."""
