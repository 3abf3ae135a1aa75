"""The run directory: SQLite and files. Knows nothing of training or HTTP."""
