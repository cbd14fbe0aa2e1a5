"""Helpers any Trio code could use: exception groups, byte budgets, channel sizes. Imports nothing of ours."""
