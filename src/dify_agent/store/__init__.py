"""The durable run log in Redis: records, events, cancel intents, owner keys."""
