"""The first question to a server: is it one of ours, and does it know the organisation?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launchhelm.errors import ConfigError
from syncer.api.answers import ApiError
from syncer.connection import Connection
from syncer.settings import KeySource, Target
from tests.support.scripted_server import Reply, ScriptedServer, refusal

ORG = "0f6b7c1e-4f7a-4c1d-9a52-0a8b7f3d2c11"
OTHER = "0f6b7c1e-4f7a-4c1d-9a52-0a8b7f3d2c12"


@pytest.fixture
def far() -> Iterator[ScriptedServer]:
    with ScriptedServer() as it:
        yield it


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAUNCHHELM_API_KEY_FILE", raising=False)
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")


def connect(far: ScriptedServer, reply: Reply, organization: str = ORG) -> Connection:
    far.script = lambda asked: reply
    with Connection(Target(far.url, KeySource(), organization)) as connection:
        connection.connect()
    assert [asked.path.partition("?")[0] for asked in far.seen] == ["/v1/organizations"]
    return connection


def listing(*ids: str) -> Reply:
    return Reply(200, body={"items": [{"id": it, "name": "lab"} for it in ids]})


@pytest.mark.parametrize("organization", [ORG, ""])
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(302, {"Location": "/login"}, b""), "redirect (302)"),
        (Reply(200, {"Content-Type": "text/html"}, b"<html>hello</html>"), "else than JSON"),
        (Reply(200, body=[1]), "else than JSON"),
        (Reply(404, {"Content-Type": "text/html"}, b"<html>no</html>"), "status 404"),
        (refusal(404, "not_found"), "status 404"),
        (Reply(405, body=b"no"), "status 405"),
    ],
)
def test_what_answers_like_no_server_of_ours_is_called_that(
    far: ScriptedServer, reply: Reply, said: str, organization: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(far, reply, organization)
    assert f"not a LaunchHelm server: {far.url}" in caught.value.message
    assert said in caught.value.message and "--server" in caught.value.remedy


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_refused_key_and_a_busy_server_stay_what_they_are(
    far: ScriptedServer, status: int
) -> None:
    with pytest.raises(ApiError) as caught:
        connect(far, Reply(status, body=b"<html>later</html>"))
    assert caught.value.status == status


def test_a_key_that_may_not_list_organisations_is_used_where_one_is_named(
    far: ScriptedServer,
) -> None:
    assert connect(far, refusal(403, "forbidden")).organization == ORG
    far.seen.clear()
    with pytest.raises(ApiError):
        connect(far, refusal(403, "forbidden"), "")


def test_an_organisation_that_the_server_does_not_list_is_unknown(far: ScriptedServer) -> None:
    with pytest.raises(ConfigError, match=f"{OTHER} is unknown"):
        connect(far, listing(ORG), OTHER)
    far.seen.clear()
    connect(far, listing(ORG.upper(), OTHER), ORG)
    far.seen.clear()
    connect(far, listing(), OTHER)
