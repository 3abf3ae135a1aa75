"""Every path of the v1 API that we send to or serve, once.

The names in braces are filled by `str.format` in the client and by the router of the server.
"""

from __future__ import annotations

from typing import Final

_ORG = "/v1/organizations/{org}"

ME: Final = "/v1/me"
ORGANIZATIONS: Final = "/v1/organizations"

DOCUMENTS: Final = _ORG + "/documents"
DOCUMENT: Final = _ORG + "/documents/{id}"
DOCUMENT_BATCHES: Final = _ORG + "/document-batches"
KEYS: Final = _ORG + "/keys"

SESSIONS: Final = _ORG + "/participants/{id}/sessions"
HEARTBEAT: Final = _ORG + "/participants/{id}/heartbeat"
SESSION_END: Final = _ORG + "/participants/{id}/session/end"
CLAIM: Final = _ORG + "/participants/{id}/commands"
SESSION: Final = _ORG + "/participants/{id}/session"
"""An extension: reads where a session stands, for whoever commands."""

TELEMETRY: Final = _ORG + "/telemetry"
TELEMETRY_BATCHES: Final = _ORG + "/telemetry/batches"
SAMPLES: Final = _ORG + "/telemetry/samples"
POINTS: Final = _ORG + "/streams/{id}/points"

COMMANDS: Final = _ORG + "/commands"
COMMAND: Final = _ORG + "/commands/{id}"
RUN_COMMANDS: Final = _ORG + "/runs/{id}/commands"
"""An extension: lists the commands of a run."""
COMMAND_APPROVE: Final = _ORG + "/commands/{id}/approve"
COMMAND_CANCEL: Final = _ORG + "/commands/{id}/cancel"
COMMAND_BEGIN: Final = _ORG + "/commands/{id}/begin"
COMMAND_RENEW: Final = _ORG + "/commands/{id}/heartbeat"
COMMAND_RESULT: Final = _ORG + "/commands/{id}/result"

ARTIFACTS: Final = _ORG + "/artifacts"
ARTIFACT_PARTS: Final = _ORG + "/artifacts/{id}/parts"
ARTIFACT_COMPLETE: Final = _ORG + "/artifacts/{id}/complete"
ARTIFACT_DOWNLOAD: Final = _ORG + "/artifacts/{id}/download"

EVENTS: Final = _ORG + "/events"
