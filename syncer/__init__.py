"""The sync service: carries run directories to a LaunchHelm server.

Training, reading and controlling a run need no syncer and no network. Nothing is imported here, so
that whoever only wants a part pays for that part: `service` is the loop, `push` sends one run,
`mapping` says what a record becomes, `server` is a small server of our own.
"""
