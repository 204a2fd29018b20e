"""Trees, groups, admission, packing into micro-steps."""
