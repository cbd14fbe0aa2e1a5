"""Models a run can use: the scripted one and Pydantic AI's adapters."""
