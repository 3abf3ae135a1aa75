"""Which runs stay in another project than the one that `launchhelm sync --project` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launchhelm import _wording
from launchhelm.cli.output import Output
from launchhelm.errors import LaunchHelmError

if TYPE_CHECKING:
    from syncer.api.client import Client
    from syncer.discover import Place
    from syncer.service import Service
    from syncer.settings import Target

_TIMEOUT_S = 10.0


def warn(service: Service, target: Target, organization: str, output: Output) -> None:
    """Say of runs that were on the server before the project was named that they stay there.

    Reads the state of every run, and asks the server for the names of the projects they are in.
    """
    from syncer import status

    found: dict[str, list[Place]] = {}
    for work in list(service.work.values()):
        place = work.place
        known = status.of_server(place.directory, place.run_id, target.url, organization)
        if known is not None and known.state.project and known.state.run:
            found.setdefault(known.state.project, []).append(place)
    found.pop(target.project.lower(), None)
    if not found:
        return
    from syncer.api.client import Client

    with Client(
        target.url,
        organization,
        target.key.read(),
        ca_bundle=target.ca_bundle,
        verify=target.verify,
        timeout_s=_TIMEOUT_S,
    ) as client:
        for project, places in found.items():
            name = _name(client, project)
            if name and name != target.project:
                _say(name, places, target.project, output)


def _name(client: Client, project: str) -> str:
    try:
        return str(client.get_document(project)["spec"].get("name", ""))
    except LaunchHelmError:
        return ""


def _say(name: str, places: list[Place], wanted: str, output: Output) -> None:
    more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
    output.say(
        _wording.plain(
            f"{places[0].name}{more}: in the project {name!r} since an earlier sync, and stays "
            f"there; --project {wanted} is for runs that are not on the server yet"
        )
    )
