"""REST API, jobs, the ledger and role transitions."""
