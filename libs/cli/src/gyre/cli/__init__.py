"""The gyre command line."""
