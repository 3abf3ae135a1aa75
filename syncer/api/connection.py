"""The one door to the network: requests with limits on everything, and errors that say enough.

Thread-safe. Redirects are never followed, cookies never kept. A key appears in no repr, no message
and no traceback: errors are raised where no exception of the HTTP library is their context.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, BinaryIO, Final  # Any: JSON values.
from urllib.request import getproxies, proxy_bypass

import httpx

from launchhelm.errors import ConfigError
from syncer.api import answers
from syncer.api.answers import ApiError
from syncer.api.limits import MAX_ANSWER_BYTES
from syncer.api.origin import LOOPBACK, host_of, is_object_url

CHUNK_BYTES: Final = 1 << 18
TOTAL_FACTOR: Final = 4
"""A whole call may take this many times the timeout of one of its steps."""
UPLOAD_TIMEOUT_S: Final = 120.0
OBJECT_TOTAL_S: Final = 900.0
"""A part of 64 MiB at 75 kB/s."""
KEEP_ALIVE_S: Final = 30.0
MAX_CONNECTIONS: Final = 1024
"""A parked call takes one for as long as it waits, and there may be as many as live runs."""
PARKED: Final = 16
"""So many share a pool: the library compares all connections of a pool in each call."""


class Trust:
    """Whom we believe to be the server.

    Args:
        ca_bundle: PEM file that replaces the system's authorities; "" for those.
        verify: False believes anybody.

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, ca_bundle: str = "", *, verify: bool = True) -> None:
        self.context, self.name = _authorities(ca_bundle)  # The name is for messages.
        if not verify:
            self.context.check_hostname = False
            self.context.verify_mode = ssl.CERT_NONE
            self.name = "none, verification is switched off"


class _TooSlow(Exception):
    """A call took longer than all its steps together may."""


class _TooLarge(Exception):
    """An answer has more bytes than we take."""


@dataclass(slots=True)
class _Pool:
    """Connections of some parked calls."""

    client: httpx.Client
    calls: int = 0


class Connection:
    """Connections to one server, and to the object stores that it names.

    Args:
        origin: As `check_origin` returns it.
        trust: Whom to believe.
        timeout_s: Limit of each step of a call: connect, send, receive, wait for a connection.
        transport: Takes the place of the network, in tests.

    Raises:
        ConfigError: The proxy variables of the environment cannot be used.
    """

    def __init__(
        self,
        origin: str,
        trust: Trust,
        *,
        timeout_s: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.origin = origin
        self.timeout_s = timeout_s
        self._trust = trust
        self._transport = transport
        self._lock = threading.Lock()
        self._parked: list[_Pool] = []
        problem = ""
        try:
            self._api = self._open(transport)
            self._objects = self._open(transport)
        except (ValueError, ImportError, httpx.InvalidURL):
            problem = "The proxy that the environment names cannot be used."
        if problem:
            raise ConfigError(problem, remedy="Look at HTTPS_PROXY, HTTP_PROXY and ALL_PROXY.")

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            pools = [each.client for each in self._parked]
        for client in (self._api, self._objects, *pools):
            client.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        read_timeout_s: float | None = None,
        secret: str = "",
        on_sent: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call the API once and return the decoded JSON.

        Args:
            method: Verb.
            path: From the origin on.
            headers: The key among them.
            params: Query.
            body: JSON.
            read_timeout_s: Where the server is asked to wait; None where it is not.
            secret: What must not be repeated from the server's words.
            on_sent: Called when the network has taken the body.

        Raises:
            ApiError: Anything but a success with a JSON body.
        """
        read_s = self.timeout_s if read_timeout_s is None else read_timeout_s
        deadline = time.monotonic() + TOTAL_FACTOR * self.timeout_s + read_s
        timeout = httpx.Timeout(self.timeout_s, read=read_s)
        url = self.origin + path
        failure: ApiError
        try:
            with (
                self._pool(is_parked=read_timeout_s is not None) as client,
                _stream(
                    client,
                    method,
                    url,
                    headers,
                    timeout,
                    deadline,
                    body=body,
                    params=params,
                    on_sent=on_sent,
                ) as answer,
            ):
                kept = bytearray()
                for chunk in _received(answer, deadline, MAX_ANSWER_BYTES):
                    kept += chunk
                return answers.read(
                    answer.status_code, answer.headers, kept, now=time.time(), secret=secret
                )
        except _TooLarge:
            failure = ApiError("response_too_large", "The answer has over 8 MiB.")
        except (_TooSlow, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            failure = ApiError("transport", self._explain(url, error), retryable=True)
        raise failure

    def put(self, url: str, headers: Mapping[str, str], data: bytes | memoryview) -> str:
        """Send one part to a signed address and return its ETag.

        Raises:
            ApiError: `insecure_upload`; else `upload_uncertain` or `upload_failed`, which a new
                signed address may cure.
        """
        _check_object(url, "insecure_upload")
        deadline = time.monotonic() + OBJECT_TOTAL_S
        failure: ApiError
        try:
            with _stream(
                self._objects,
                "PUT",
                url,
                headers,
                httpx.Timeout(UPLOAD_TIMEOUT_S, connect=self.timeout_s),
                deadline,
                body=data,
            ) as answer:
                for _ in _received(answer, deadline, MAX_ANSWER_BYTES):
                    pass
                etag = answer.headers.get("ETag", "")
                if answer.status_code < 300 and etag:
                    return str(etag)
                failure = ApiError(
                    "upload_failed",
                    f"The object store answered with status {answer.status_code}"
                    + ("." if etag or answer.status_code >= 300 else " and no ETag."),
                    status=answer.status_code,
                    retryable=True,
                    retry_after_s=answers.retry_after(answer.headers, now=time.time()),
                )
        except _TooLarge:
            failure = ApiError("upload_failed", "The answer has over 8 MiB.", retryable=True)
        except (_TooSlow, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            failure = ApiError("upload_uncertain", self._explain(url, error), retryable=True)
        raise failure

    def get(self, url: str, into: BinaryIO, *, max_bytes: int, least_rate: float = 0.0) -> int:
        """Read a signed address into a file and return the number of bytes.

        Args:
            least_rate: Bytes in a second; `max_bytes` may take as long as they do at that rate.

        Raises:
            ApiError: `insecure_download`, `response_too_large`, `http_error` or `transport`.
        """
        _check_object(url, "insecure_download")
        deadline = time.monotonic() + max(
            OBJECT_TOTAL_S, max_bytes / least_rate if least_rate else 0.0
        )
        count = 0
        failure: ApiError
        try:
            with _stream(
                self._objects, "GET", url, {}, httpx.Timeout(self.timeout_s), deadline
            ) as answer:
                if answer.status_code < 300:
                    for chunk in _received(answer, deadline, max_bytes):
                        count += into.write(chunk)
                    return count
                failure = ApiError(
                    "http_error",
                    f"The object store answered with status {answer.status_code}.",
                    status=answer.status_code,
                    retryable=answer.status_code == 429 or answer.status_code >= 500,
                    retry_after_s=answers.retry_after(answer.headers, now=time.time()),
                )
        except _TooLarge:
            failure = ApiError("response_too_large", f"The object has over {max_bytes:,} bytes.")
        except (_TooSlow, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            failure = ApiError("transport", self._explain(url, error), retryable=True)
        raise failure

    @contextmanager
    def _pool(self, *, is_parked: bool) -> Iterator[httpx.Client]:
        """Lend the connections for one call."""
        if not is_parked:
            yield self._api
            return
        with self._lock:
            pool = next((each for each in self._parked if each.calls < PARKED), None)
            if pool is None:
                pool = _Pool(self._open(self._transport))
                self._parked.append(pool)
            pool.calls += 1
        try:
            yield pool.client
        finally:
            with self._lock:
                pool.calls -= 1

    def _open(self, transport: httpx.BaseTransport | None) -> httpx.Client:
        # A proxy sees what goes to loopback over plain HTTP, the key included; so none is used.
        direct = {f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK}
        return httpx.Client(
            verify=self._trust.context,
            trust_env=True,
            http1=True,
            http2=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=self.timeout_s,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
            mounts=direct,
            transport=transport,
        )

    def _explain(self, url: str, error: Exception) -> str:
        """Say in one line what failed, between whom, and through what."""
        host = host_of(url)
        proxy = _proxy(url)
        way = f"{host} through the proxy {proxy}" if proxy else host
        tls = _tls_failure(error)
        if tls is not None:
            reason = getattr(tls, "verify_message", "") or tls.reason or "handshake failed"
            return (
                f"TLS with {host} failed: {answers.plain(str(reason))} "
                f"(proxy: {proxy or 'none'}; CA file: {self._trust.name})."
            )
        if isinstance(error, _TooSlow):
            return f"The exchange with {way} took too long as a whole."
        if isinstance(error, httpx.TimeoutException):
            return f"{way} did not answer in time ({type(error).__name__})."
        return f"{way} cannot be reached ({type(error).__name__}: {_system_words(error)})."


@contextmanager
def _stream(
    client: httpx.Client,
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    deadline: float,
    *,
    body: bytes | memoryview | None = None,
    params: Mapping[str, str] | None = None,
    on_sent: Callable[[], object] = lambda: None,
) -> Iterator[httpx.Response]:
    content: Iterator[bytes] | None = None
    sent = dict(headers)
    if body is not None:
        sent["Content-Length"] = str(len(body))
        content = _pieces(body, deadline, on_sent)
    with client.stream(
        method, url, params=params, content=content, headers=sent, timeout=timeout
    ) as answer:
        yield answer


def _pieces(
    body: bytes | memoryview, deadline: float, on_sent: Callable[[], object]
) -> Iterator[bytes]:
    """Hand out a body bit by bit: the library's limits are per bit, ours is for all."""
    view = memoryview(body)
    for start in range(0, len(view), CHUNK_BYTES):
        if time.monotonic() > deadline:
            raise _TooSlow
        yield bytes(view[start : start + CHUNK_BYTES])
    on_sent()


def _received(answer: httpx.Response, deadline: float, limit: int) -> Iterator[bytes]:
    count = 0
    for chunk in answer.iter_bytes():
        count += len(chunk)
        if count > limit:
            raise _TooLarge
        if time.monotonic() > deadline:
            raise _TooSlow
        yield chunk


def _check_object(url: str, code: str) -> None:
    if not is_object_url(url):
        raise ApiError(code, "The server named an object by an address that is not safe.")


def _authorities(ca_bundle: str) -> tuple[ssl.SSLContext, str]:
    if ca_bundle:
        try:
            return ssl.create_default_context(cafile=ca_bundle), ca_bundle
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"The CA bundle {ca_bundle} cannot be used ({type(error).__name__}).",
                remedy="LAUNCHHELM_CA_BUNDLE must name a readable PEM file of certificates.",
            ) from error
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        return ssl.create_default_context(), f"the system's, {paths.cafile or paths.capath}"
    return httpx.create_ssl_context(), "the HTTP library's own"


def _proxy(url: str) -> str:
    """Name the proxy of an address by host and port, or return ""."""
    host = host_of(url)
    name = host.rpartition("]")[0].lstrip("[") if "]" in host else host.partition(":")[0]
    if name in LOOPBACK or proxy_bypass(host):
        return ""
    proxies = getproxies()
    chosen = proxies.get(url.partition(":")[0]) or proxies.get("all") or ""
    return host_of(chosen if "://" in chosen else f"http://{chosen}") if chosen else ""


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ssl.SSLError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _system_words(error: Exception) -> str:
    return answers.plain(str(error)) or "no reason given"
