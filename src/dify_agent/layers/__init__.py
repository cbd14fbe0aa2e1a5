"""Layers this server adds: one package per type, whose root holds DTOs only and whose ``layer`` module behaves."""
