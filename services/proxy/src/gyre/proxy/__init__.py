"""The vendor APIs, exact tokens, live trees, rerouting."""
