"""A server's runs as run directories, so that what reads those can read these."""
