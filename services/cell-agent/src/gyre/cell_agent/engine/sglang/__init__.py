"""SGLang as an engine: how it is started, and what it lacks on a CPU."""
