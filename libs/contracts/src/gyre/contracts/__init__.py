"""Events, commands, subjects and HTTP models every service shares."""
