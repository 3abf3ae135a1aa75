"""The local dashboard: pages over run directories, for one user, without any third-party package.

`app.App` is a WSGI callable that answers; `serve.Service` listens. Nothing here writes into a run
except a command, through the inbox, and no path that a client sends reaches the file system.
"""
