"""The oracle: the agent loop on Trio against ``pydantic_ai.Agent`` on asyncio, scenario by scenario."""
