"""The HTTP front: hypercorn on Trio serving a quart-trio app. Knows no actor; talks to the supervisor's handle and
the store.

Import it only as ``dify_agent.http``.
"""
