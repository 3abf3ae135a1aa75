"""The sync service: it will carry run directories to a LaunchHelm server and commands back.

Nothing is here yet. Training, reading and controlling a run need no syncer and no network.
"""
