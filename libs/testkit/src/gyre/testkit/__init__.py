"""Builders, fakes and contract suites for tests."""
