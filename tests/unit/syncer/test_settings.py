"""Where runs go, and the key as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchhelm.env import load_env
from launchhelm.errors import ConfigError
from syncer.settings import HOSTED_URL, KeySource, Target


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "API_KEY", "API_KEY_FILE", "ORGANIZATION", "PROJECT", "CA_BUNDLE"):
        # Set first, so that what a test loads from `.env` is taken back as well.
        monkeypatch.setenv(f"LAUNCHHELM_{name}", "")
        monkeypatch.delenv(f"LAUNCHHELM_{name}")
    monkeypatch.chdir(tmp_path)


def test_the_key_comes_from_a_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "key"
    source = KeySource(str(file))
    assert source.read() == ""
    file.write_text("\n  first \n", "utf-8")
    assert source.read() == "first"
    file.write_text("second\n", "utf-8")
    assert source.read() == "second"
    assert "second" not in str(source)


def test_a_file_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("of the file", "utf-8")
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "of the environment")
    assert KeySource().read() == "of the environment"
    monkeypatch.setenv("LAUNCHHELM_API_KEY_FILE", str(tmp_path / "key"))
    assert KeySource().read() == "of the file"


def test_a_key_that_is_replaced_in_an_env_file_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = tmp_path / ".env"
    env.write_text("LAUNCHHELM_API_KEY=old\n", "utf-8")
    load_env()
    source = KeySource()
    assert source.read() == "old"
    monkeypatch.chdir("/")
    env.write_text("LAUNCHHELM_API_KEY=new\n", "utf-8")
    assert source.read() == "new"


def test_a_key_of_the_environment_is_no_matter_for_env_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "given")
    (tmp_path / ".env").write_text("LAUNCHHELM_API_KEY=other\n", "utf-8")
    load_env()
    assert KeySource().read() == "given"


def test_without_an_address_the_hosted_server_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    assert Target.of().url == HOSTED_URL
    monkeypatch.setenv("LAUNCHHELM_URL", "https://lan.example/prefix/")
    assert Target.of().url == "https://lan.example/prefix"
    assert Target.of(url="http://127.0.0.1:1/").url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "launchhelm serve"),
        ({"LAUNCHHELM_URL": "https://lan.example"}, "no key for https://lan.example"),
        ({"LAUNCHHELM_API_KEY_FILE": "/nowhere/key"}, "holds no key"),
        ({"LAUNCHHELM_API_KEY": "k", "LAUNCHHELM_URL": "http://lan.example"}, "https://"),
        ({"LAUNCHHELM_API_KEY": "k", "LAUNCHHELM_ORGANIZATION": "lab"}, "UUID"),
    ],
)
def test_what_is_missing_or_wrong_is_said(
    settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        Target.of()
    assert said in str(caught.value)
