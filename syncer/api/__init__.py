"""The wire of the v1 API: its JSON, its paths, and one client for it."""
