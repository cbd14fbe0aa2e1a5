"""Models that Dify serves: Pydantic AI's messages to Dify's prompt messages and back (integrations 3).

``gateway`` and ``daemon`` are the two ways there; ``model`` is what a layer hands to the loop.
"""
