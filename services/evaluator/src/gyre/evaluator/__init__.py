"""Scores preserved workspaces and keeps provenance."""
