"""Weight transport between cells: one port, one file per technology."""
