"""How a call becomes a whole turn: streams from engines, and caches that follow a route."""
