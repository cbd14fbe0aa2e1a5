"""Fakes shipped as a product, for operators' load tests and for this project's own tests."""
