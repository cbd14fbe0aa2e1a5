"""Names that callers of the server package know: ``server.app.create_app`` and ``server.settings.ServerSettings``."""
