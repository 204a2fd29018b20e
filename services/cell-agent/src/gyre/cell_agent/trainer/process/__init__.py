"""The trainer as a process: its command line, its control connection, the agent's end of both."""
