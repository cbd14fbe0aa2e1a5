"""Actors: the run actor and the permanent services (publisher, cancel observer, heartbeat). They know no HTTP."""
