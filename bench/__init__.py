"""What `make bench` runs: costs, as ratios where they can be. Never a test: it fails only when something cannot run."""
