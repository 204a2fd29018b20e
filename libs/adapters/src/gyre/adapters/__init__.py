"""Event log, blob store, Postgres, clock, settings, logging."""
