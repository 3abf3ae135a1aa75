"""A small server of the LaunchHelm API v1: one process, one machine, one SQLite database.

`app.application` is the whole of it as an ASGI application, `serve` runs it. It shares the wire
(`syncer.api.wire`, `syncer.api.routes`) with our client and nothing else, so that a mistake in how
one side stores things cannot hide behind the same mistake on the other.
"""
