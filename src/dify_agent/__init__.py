"""A server that runs AI agents for other software. Importing this package imports nothing else."""
