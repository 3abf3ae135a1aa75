"""A server behind a proxy, with a certificate of a private authority."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from launchhelm.cli import Exit
from tests.support.reading import RunBuilder
from tests.support.scripted_server import ConnectProxy, ScriptedServer
from tests.support.sync_command import QUICK, SyncCommand, points
from tests.support.v1_server import PROJECT, V1Server, v1_server

HOST = "lan.example"
STEPS = 20

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@dataclass(frozen=True)
class Authority:
    """A private authority, and a certificate of it for HOST."""

    bundle: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Site:
    """A server that is reached by its name alone, and by no other way than the proxy."""

    server: V1Server
    proxy: ConnectProxy
    far: ScriptedServer
    authority: Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", "/CN=An authority of a test")  # fmt: skip
    openssl("req", *new_key, "-keyout", "srv.key", "-out", "srv.csr", "-subj", f"/CN={HOST}")
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST}\n", "utf-8")
    openssl("x509", "-req", "-in", "srv.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-CAcreateserial", "-extfile", "names", "-out", "srv.pem")  # fmt: skip
    return Authority(folder / "ca.pem", folder / "srv.pem", folder / "srv.key")


@pytest.fixture
def site(tmp_path: Path, authority: Authority) -> Iterator[Site]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.certificate, authority.key)
    with (
        v1_server(tmp_path / "srv") as server,
        ScriptedServer(server.url, tls=tls) as far,
        ConnectProxy(far.port) as proxy,
    ):
        yield Site(server, proxy, far, authority)


@pytest.fixture
def sync(tmp_path: Path, site: Site) -> SyncCommand:
    environment = {"LAUNCHHELM_PROJECT": PROJECT, "HTTPS_PROXY": site.proxy.url, "NO_PROXY": ""}
    return SyncCommand(tmp_path, f"https://{HOST}", site.server.key, environment, QUICK)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = RunBuilder(tmp_path / "runs", name="behind").writer()
    for step in range(STEPS):
        writer.metrics(step, loss=1.0)
    writer.flush()
    return tmp_path / "runs"


def test_without_the_authority_one_line_names_host_proxy_and_bundle(
    site: Site, sync: SyncCommand, root: Path
) -> None:
    done = sync.once(root)
    assert done.code == Exit.STILL_WAITING
    said = [line for line in done.err.splitlines() if "certificate" in line.lower()]
    assert len(said) == 1, done.err
    assert HOST in said[0] and site.proxy.url.removeprefix("http://") in said[0]
    assert "CA file" in said[0]
    assert site.proxy.asked and set(site.proxy.asked) == {f"CONNECT {HOST}:443"}
    assert not site.far.seen and points(site.server) == []


@pytest.mark.parametrize("how", ["option", "environment", "file"])
def test_with_the_authority_everything_goes_through_the_proxy(
    how: str, site: Site, sync: SyncCommand, root: Path
) -> None:
    bundle = str(site.authority.bundle)
    words = ["--ca-bundle", bundle] if how == "option" else []
    if how == "environment":
        sync.environment["LAUNCHHELM_CA_BUNDLE"] = bundle
    elif how == "file":
        (sync.path / ".env").write_text(f"LAUNCHHELM_CA_BUNDLE={bundle}\n", "utf-8")
    done = sync.once(root, *words)
    assert done.code == Exit.DONE, done.err
    assert done.err == ""
    assert len(points(site.server, "loss")) == STEPS
    assert set(site.proxy.asked) == {f"CONNECT {HOST}:443"}


def test_believing_any_server_needs_an_option_and_warns_each_time(
    site: Site, sync: SyncCommand, root: Path
) -> None:
    for _ in range(2):
        done = sync.once(root, "--insecure-skip-verify")
        assert done.code == Exit.DONE, done.err
        assert "the server's certificate is not checked" in done.err
    assert len(points(site.server, "loss")) == STEPS


def test_a_proxy_that_is_not_there_is_named(site: Site, sync: SyncCommand, root: Path) -> None:
    sync.environment["HTTPS_PROXY"] = "http://127.0.0.1:9"
    done = sync.once(root)
    assert done.code == Exit.STILL_WAITING
    assert "the proxy 127.0.0.1:9" in done.err and HOST in done.err
