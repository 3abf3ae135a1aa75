"""What the official client sends, takes and refuses on the wire, case by case."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from launchhelm import rich, scalar
from launchhelm.errors import ConfigError
from syncer.api import answers, reading, results, wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.api.origin import check_organization, check_origin, is_object_url

HERE = Path(__file__).parent / "vectors"
CASES = json.loads((HERE / "wire.json").read_text("utf-8"))

ORGANIZATION = "11111111-1111-4111-8111-111111111111"
PROJECT = "22222222-2222-4222-8222-222222222222"
RUN = "33333333-3333-4333-8333-333333333333"
STREAM = PROJECT  # As the cases have it.
PARTICIPANT = "55555555-5555-4555-8555-555555555555"
INSTANCE = "cccccccc-cccc-4ccc-8ccc-cccccccccccc"
SCOPE = {"organization_id": ORGANIZATION, "project_id": PROJECT, "run_id": RUN}
COMMAND: dict[str, Any] = {
    "id": "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa",
    "lease_id": "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb",
    "fingerprint": "0fe070866719cad69a6d93d8a33a464612dc059ba9e4dfb2e1a601be4e76ea6b",
    "request": {
        "scope": SCOPE,
        "capability": {
            "id": "44444444-4444-4444-8444-444444444444",
            "kind": "capability",
            "revision": "1",
        },
        "participant_id": PARTICIPANT,
        "epoch": "7",
        "expected_state_revision": "0",
        "targets": [],
        "input": {"scale": 0.5},
        "safe_point": "lht",
        "expires_at": "2027-01-01T00:00:00Z",
        "reason": "halve",
    },
}
PLACE = [{"axis": "step", "value": "12"}]

PYTHON: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "bool": lambda text: text == "true",
}


def of(*functions: str) -> list[Any]:
    found = [case for case in CASES if case["function"] in functions]
    assert {case["function"] for case in found} == set(functions)
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in found]


def error_of(expected: Any) -> Any:
    return expected.get("error") if isinstance(expected, dict) else None


def text_of(given: Mapping[str, Any]) -> str | bytes:
    """Build the document of a case."""
    if "hex" in given:
        return bytes.fromhex(given["hex"])
    if "construct" not in given:
        return str(given.get("text", given.get("json_text")))
    parts = given["construct"]
    middle = parts.get("separator", "").join([parts["unit"]] * parts["count"])
    end = parts.get("suffix", "") + parts.get("suffix_unit", "") * parts.get("suffix_count", 0)
    return f"{parts['prefix']}{middle}{end}"


def value_of(given: Mapping[str, Any]) -> Any:
    """Read the value of a case as Python does, without our own rules."""
    return json.loads(text_of(given))


def outcome(call: Callable[[], Any]) -> Any:
    """Return the value, or the error in the form of the cases."""
    try:
        return call()
    except wire.WireError as error:
        return {"error": {"type": "ValueError", "reason": error.reason}}


# JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), of("canonical"))
def test_a_document_is_acceptable_and_has_the_canonical_form(given: Any, expected: Any) -> None:
    made = outcome(lambda: wire.canonical(wire.parse(text_of(given))))
    if isinstance(expected, dict) and "bytes" in expected:
        made = {"bytes": len(made), "sha256": hashlib.sha256(made).hexdigest()}
    assert (made.decode() if isinstance(made, bytes) else made) == expected


@pytest.mark.parametrize(("given", "expected"), of("canonical"))
def test_a_canonical_form_is_acceptable_and_its_own(given: Any, expected: Any) -> None:
    if isinstance(expected, str):
        assert wire.canonical(wire.parse(expected)) == expected.encode()


@pytest.mark.parametrize(("given", "expected"), of("encode"))
def test_a_value_has_the_wire_form(given: Any, expected: Any) -> None:
    made = outcome(lambda: wire.encode(value_of(given)).decode())
    assert made == expected


@pytest.mark.parametrize(("given", "expected"), of("fingerprint"))
def test_a_value_has_the_fingerprint(given: Any, expected: Any) -> None:
    assert outcome(lambda: wire.fingerprint(value_of(given))) == expected


@pytest.mark.parametrize(("given", "expected"), of("encode(scalar)"))
def test_a_measurement_has_the_wire_form(given: Any, expected: Any) -> None:
    value = PYTHON[given["type"]](given["text"])
    if error_of(expected):
        with pytest.raises((ValueError, TypeError)):
            wire.encode(scalar(value))
    else:
        assert wire.encode(scalar(value)).decode() == expected
    if isinstance(value, int | float) and given["type"] != "bool":
        # The numbers of the push: the same, and large floats as the integers that they are.
        sent = wire.encode(wire.number(value)).decode()
        assert sent == expected or (error_of(expected) and '"integer"' in sent)


# Points, batches and receipts ---------------------------------------------------------------------


def coordinates_of(listed: list[dict[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((entry["axis"], entry["value"]) for entry in listed)


@pytest.mark.parametrize(("given", "expected"), of("encode_point"))
def test_a_point_has_the_bytes(given: Any, expected: Any) -> None:
    arguments = (
        given["observed_at"],
        coordinates_of(given["coordinates"]),
        json.loads(given["value_json_text"]),
    )
    assert wire.unbound_point(*arguments).decode() == expected
    assert wire.point(*arguments, 7) == wire.bind(expected.encode(), 7)


@pytest.mark.parametrize(("given", "expected"), of("bind_sequence"))
def test_a_sequence_is_added_at_the_end(given: Any, expected: Any) -> None:
    sequence = int(given.get("sequence", given.get("sequence_text")))
    made = outcome(lambda: wire.bind(given["point_text"].encode(), sequence).decode())
    assert made == expected


@pytest.mark.parametrize(("given", "expected"), of("assemble_telemetry_batch"))
def test_a_batch_has_the_bytes(given: Any, expected: Any) -> None:
    made = wire.batch(
        given["batch_id"],
        given["stream_id"],
        given["stream_revision"],
        given["epoch"],
        given["participant_id"],
        [text.encode() for text in given["point_texts"]],
    )
    assert made.decode() == expected["text"]
    assert hashlib.sha256(made).hexdigest() == expected["sha256"]
    assert wire.fingerprint(wire.parse(made)) == expected["fingerprint"]


@pytest.mark.parametrize(("given", "expected"), of("ingest_many_body"))
def test_a_grouped_request_has_the_bytes(given: Any, expected: Any) -> None:
    made = wire.request([text.encode() for text in given["batch_texts"]]).decode()
    assert made == (expected if isinstance(expected, str) else expected["text"])


@pytest.mark.parametrize(("given", "expected"), of("spool_partition"))
def test_points_go_into_batches_and_batches_into_requests(given: Any, expected: Any) -> None:
    sizes = given["unsequenced_point_bytes"]
    if isinstance(sizes, dict):
        sizes = [sizes["repeat"]] * sizes["count"]
    streams = given["stream_ids"]
    streams = [streams] * len(sizes) if isinstance(streams, str) else streams
    points: dict[str, list[bytes]] = {}
    for size, stream in zip(sizes, streams, strict=True):
        mine = points.setdefault(stream, [])
        mine.append(wire.bind(b'{"v":"' + b"x" * (size - 8) + b'"}', len(mine)))
    batches: list[bytes] = []
    made = []
    for stream, mine in points.items():
        first = 0
        for part in wire.partition(mine):
            batches.append(wire.batch("b" * 36, stream, "1", "1", "p", part))
            last = first + len(part) - 1
            made.append(
                {
                    "batch_bytes": len(batches[-1]),
                    "points": len(part),
                    "stream_id": stream,
                    "first_sequence": str(first),
                    "last_sequence": str(last),
                }
            )
            first = last + 1
    assert len(batches) >= expected["batches_assembled_after_call"]
    assert made[: wire.fitting(batches)] == expected["envelope"]


@pytest.mark.parametrize(("given", "expected"), of("reconcile_receipts"))
def test_receipts_are_believed_as_hosted(given: Any, expected: Any) -> None:
    raised = None
    try:
        told = wire.receipts(given["response"], dict.fromkeys(given["submitted"], "s"))
    except wire.InvalidReceipt as error:
        told = list(error.before)
        raised = {"code": error.reason, "retryable": False}
    refused = [receipt for receipt in told if not receipt.stored]
    if raised is None and refused:  # The first one decides.
        raised = {"code": refused[0].code, "retryable": refused[0].retryable}
    assert [receipt.batch_id for receipt in told if receipt.stored] == expected["acknowledged"]
    assert raised == expected.get("raised")


# Answers and addresses ----------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), of("classify_response"))
def test_an_answer_means_what_it_means_to_the_official_client(given: Any, expected: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if given.get("network_failure"):
            raise httpx.ConnectError("refused", request=request)
        if "decoded_body_bytes" in given:
            return httpx.Response(200, content=b'"' + b"x" * given["decoded_body_bytes"])
        body = given["body"]
        raw = body["raw_text"].encode() if "raw_text" in body else json.dumps(body).encode()
        return httpx.Response(given["status"], content=raw)

    with Client(
        "https://example.org", ORGANIZATION, "key", transport=httpx.MockTransport(answer)
    ) as client:
        try:
            made: Any = {"result": client._call("GET", "/v1/me", None)}
        except ApiError as error:
            made = {
                "error": {
                    "type": "LaunchHelmError",
                    "code": error.code,
                    "status": error.status,
                    "retryable": error.retryable,
                }
            }
    assert made == expected


@pytest.mark.parametrize(("given", "expected"), of("base_url"))
def test_a_server_is_named_by_a_safe_address(given: Any, expected: Any) -> None:
    if error_of(expected):
        with pytest.raises(ConfigError):
            check_origin(given["url"])
    else:
        assert check_origin(given["url"]) == expected


@pytest.mark.parametrize(("given", "expected"), of("download_url"))
def test_an_object_is_read_from_a_safe_address(given: Any, expected: Any) -> None:
    assert is_object_url(given["url"]) == (expected == "accepted")
    if error_of(expected):
        with (
            Client("https://example.org", ORGANIZATION, "key") as client,
            pytest.raises(ApiError) as raised,
        ):
            client.download(given["url"], None)  # type: ignore[arg-type]  # Never reached.
        assert raised.value.code == expected["error"]["code"]


@pytest.mark.parametrize(("given", "expected"), of("organization_id"))
def test_an_organisation_is_named_by_its_id(given: Any, expected: Any) -> None:
    with pytest.raises(ConfigError):
        check_organization(given["organization_id"])


# Requests -----------------------------------------------------------------------------------------

RESULT = results.applied(COMMAND, {"lr": [0.05]}, PLACE)
CALLS: dict[str, Callable[[Client], Any]] = {
    "create_document": lambda c: c.create_document(
        "run",
        {"organization_id": ORGANIZATION, "project_id": PROJECT},
        {"name": "r", "state": "open"},
    ),
    "create_documents": lambda c: c.create_documents(
        [{"kind": "stream", "scope": SCOPE, "spec": {"name": name}} for name in "ab"]
    ),
    "get_document": lambda c: c.get_document(PROJECT),
    "get_document_revision": lambda c: c.get_document(PROJECT, "2"),
    "update_document": lambda c: c.update_document(PROJECT, "3", {"name": "x"}),
    "list_documents": lambda c: list(c.list_documents("stream", PROJECT, RUN)),
    "list_my_organizations": lambda c: c.organizations(),
    "connect": lambda c: c.connect(PARTICIPANT, INSTANCE, ["after_step"]),
    "heartbeat": lambda c: c.heartbeat(PARTICIPANT, "1"),
    "heartbeat_safe_points": lambda c: c.heartbeat(PARTICIPANT, "1", safe_points=["lht"]),
    "claim": lambda c: c.claim(PARTICIPANT, "1", 19_000),
    "claim_no_wait": lambda c: c.claim(PARTICIPANT, "1"),
    "begin": lambda c: c.begin(COMMAND["id"], COMMAND["lease_id"], "7"),
    "renew": lambda c: c.renew(COMMAND["id"], COMMAND["lease_id"], "7"),
    "report": lambda c: c.result(COMMAND["id"], RESULT),
    "end_session": lambda c: c.end_session(PARTICIPANT, "1", "when_idle"),
    "submit_command": lambda c: c.submit(COMMAND["request"], "k-1"),
    "get_command": lambda c: c.get_command(COMMAND["id"]),
    "approve": lambda c: c.approve(COMMAND["id"], COMMAND["fingerprint"]),
    "cancel": lambda c: c.cancel(COMMAND["id"], COMMAND["fingerprint"]),
    "query": lambda c: c.points(STREAM, after=("1", "999")),
    "query_latest": lambda c: c.points(STREAM, limit=1, order="desc"),
    "query_epoch_only": lambda c: c.points(STREAM, order=""),
    "read_samples": lambda c: c.samples(
        {
            "stream_id": STREAM,
            "axis": {"kind": "coordinate", "name": "step"},
            "select": {"mode": "latest", "limit": 16},
        }
    ),
    "events": lambda c: c.events(),
    "create_key": lambda c: c.create_key({"participant_id": PROJECT}),
}
REQUESTS = [case for case in CASES if case["function"].startswith("Client.")]


def requests_of(call: Callable[[Client], Any], response: Any) -> list[httpx.Request]:
    """Make a call and return what it sent."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        return httpx.Response(200, json=response)

    with Client(
        "https://example.org", ORGANIZATION, "fixture-key", transport=httpx.MockTransport(answer)
    ) as client:
        call(client)
    return seen


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["id"])
        for case in REQUESTS
        if case["function"] not in ("Client.headers", "Client.create_key")
    ],
)
def test_a_call_sends_the_request(case: Any) -> None:
    """As the official client, but for the size of a list's page, which we try larger first."""
    name = case["function"].removeprefix("Client.")
    call = CALLS.get(name)
    (expected,) = case["expected"]
    if name == "ingest":
        call = lambda client: client.ingest_single(expected["body_text"].encode())  # noqa: E731
    assert call is not None
    (sent,) = requests_of(call, case["input"]["response"])
    query = sent.url.query.decode()
    if name.startswith("list_"):
        query = query.replace("limit=1000", "limit=100")
    assert {
        "method": sent.method,
        "path": sent.url.path,
        "query": query,
        "idempotency_key": sent.headers.get("Idempotency-Key"),
        "body_text": sent.content.decode() or None,
        "timeout_read_s": sent.extensions["timeout"]["read"],
    } == expected


def test_a_call_has_the_headers() -> None:
    """As the official client, but for the name by which we go."""
    (case,) = [case for case in REQUESTS if case["function"] == "Client.headers"]
    (sent,) = requests_of(CALLS["get_command"], {})
    expected = {**case["expected"], "user-agent": "launchhelm-offline"}
    assert {name: sent.headers[name] for name in expected} == expected


def test_a_key_is_asked_for_at_its_path() -> None:
    (case,) = [case for case in REQUESTS if case["function"] == "Client.create_key"]
    (expected,) = case["expected"]
    (sent,) = requests_of(lambda client: client.create_key(expected["body"]), {"token": "t"})
    assert (sent.method, sent.url.path) == (expected["method"], expected["path"])
    assert json.loads(sent.content) == expected["body"]


# Commands -----------------------------------------------------------------------------------------


def command(**changes: Any) -> dict[str, Any]:
    """Return a claimed command with changes to its request, and the fingerprint that fits."""
    request = {**COMMAND["request"], **changes}
    return {**COMMAND, "request": request, "fingerprint": wire.fingerprint(request)}


def capability(**changes: Any) -> dict[str, Any]:
    reference = {**COMMAND["request"]["capability"], **changes}
    return {name: value for name, value in reference.items() if value is not None}


CLAIMED: dict[str, dict[str, Any]] = {
    "fingerprint-mismatch": {**COMMAND, "fingerprint": "0" * 64},
    "capability-revision-mismatch": command(capability=capability(revision="2")),
    "capability-revision-missing": command(capability=capability(revision=None)),
    "capability-unknown": command(capability=capability(id=RUN)),
    "other-safe-point": command(safe_point="other"),
    "empty-safe-point": command(safe_point=""),
}
HANDLED: dict[str, Any] = {
    "applied": {"ok": 1},
    "applied-null-result": None,
    "result-not-encodable": object(),
    "result-nan": float("nan"),
}


@pytest.mark.parametrize(("given", "expected"), of("safe_point"))
def test_a_claimed_command_is_reported_as_hosted(given: Any, expected: Any) -> None:
    case = given["case"]
    claimed = CLAIMED.get(case, COMMAND)
    known = claimed["request"]["capability"]["id"] == COMMAND["request"]["capability"]["id"]
    refused = results.refusal(
        claimed,
        safe_point="lht",
        revision="1" if known else None,
        fits=case not in ("schema-invalid", "validator-rejects"),
    )
    if refused:
        made = results.rejected(claimed, refused)
    elif case.startswith("begin-"):
        made = results.begin_failed(claimed, case.removeprefix("begin-"))
    elif case == "handler-raises":
        made = results.unknown(claimed, "RuntimeError")
    else:
        made = results.applied(claimed, HANDLED[case], PLACE)
    assert made == expected["result_body"]
    assert list(made) == list(expected["result_body"])
    assert bool(refused) != expected["begin_called"]


@pytest.mark.parametrize(("given", "expected"), of("recover"))
def test_a_restart_reports_what_was_left_open_as_hosted(given: Any, expected: Any) -> None:
    phase = given["journal_phase"]
    executions = iter(given["get_command_executions_in_order"])
    calls = []
    execution = ""
    if phase == "received":
        calls.append("get_command")
        execution = next(executions)
    body = results.after_restart(COMMAND, phase, execution=execution, stored=given["stored_result"])
    after = "reported"
    if body is not None:
        calls.append("report")
        refused = given["report_fails_with"] == "conflict"
        if refused and not results.is_settled(body, next(executions)):
            after = "completed"
    assert calls == expected["calls_in_first_use_order"]
    assert body == expected["reported_body"]
    assert after == expected["journal_phase_after"]


# Rich values, and what readers see ----------------------------------------------------------------


def assert_same(call: Callable[[], Any], expected: Any) -> None:
    """Compare with a case whose words for a reason are not ours."""
    if error_of(expected):
        with pytest.raises(ValueError):
            call()
    else:
        assert call() == expected


@pytest.mark.parametrize(("given", "expected"), of("rich_text"))
def test_a_text_has_the_rich_form(given: Any, expected: Any) -> None:
    text, how = given.get("text", "x" * 65_537), (given.get("format"), given.get("caption"))
    assert_same(lambda: rich.Text(text, format=how[0], caption=how[1]).value(), expected)


@pytest.mark.parametrize(("given", "expected"), of("media_url"))
def test_media_elsewhere_have_the_rich_form(given: Any, expected: Any) -> None:
    assert_same(lambda: rich.media_url(**given), expected)


@pytest.mark.parametrize(("given", "expected"), of("pending_item"))
def test_media_that_wait_have_the_rich_form(given: Any, expected: Any) -> None:
    data, type_ = given["data_text"].encode(), given["media_type"]
    item = rich.Image(data, media_type=type_, caption=given["caption"]).item()
    assert item == expected


@pytest.mark.parametrize(("given", "expected"), of("bin_values"))
def test_values_are_binned_as_hosted_but_for_a_bin_without_width(given: Any, expected: Any) -> None:
    if len(set(expected.get("edges", [0, 1]))) == 1:
        edges, counts = rich.bin_values(given["values"], bins=given["bins"])
        assert edges[0] < edges[1] == expected["edges"][1] and counts == expected["counts"]
        return
    made = (expected["edges"], expected["counts"]) if "edges" in expected else expected
    assert_same(lambda: rich.bin_values(given["values"], bins=given["bins"]), made)


@pytest.mark.parametrize(("given", "expected"), of("histogram_value"))
def test_a_histogram_has_the_rich_form(given: Any, expected: Any) -> None:
    made = rich.Histogram.from_counts
    assert_same(lambda: made(given["edges"], given["counts"], **given["stats"]).value(), expected)


@pytest.mark.parametrize(("given", "expected"), of("infer_columns"))
def test_records_become_a_table_as_hosted(given: Any, expected: Any) -> None:
    assert_same(lambda: rich.Table.of_records(given["records"]).value(), expected)


@pytest.mark.parametrize(("given", "expected"), of("merge_points"))
def test_points_at_one_place_are_merged_as_hosted(given: Any, expected: Any) -> None:
    assert reading.merged(given["points"]) == expected


@pytest.mark.parametrize(("given", "expected"), of("config_from_labels"))
def test_config_is_read_back_from_labels_as_hosted(given: Any, expected: Any) -> None:
    assert reading.config_from_labels(given["labels"]) == expected


# All of them --------------------------------------------------------------------------------------

HERE_TESTED = {
    "canonical",
    "encode",
    "fingerprint",
    "encode(scalar)",
    "encode_point",
    "bind_sequence",
    "assemble_telemetry_batch",
    "ingest_many_body",
    "spool_partition",
    "reconcile_receipts",
    "classify_response",
    "base_url",
    "download_url",
    "organization_id",
    "safe_point",
    "recover",
    "rich_text",
    "media_url",
    "pending_item",
    "bin_values",
    "histogram_value",
    "infer_columns",
    "merge_points",
    "config_from_labels",
    *(case["function"] for case in REQUESTS),
}
ELSEWHERE = {
    "sdk.json": {
        "scalar",
        "coordinate",
        "run_coordinates",
        "validate_coordinates",
        "validate_semantic",
        "require_semantic",
        "input_schema",
        "capability_spec",
    },
    "torch.json": {"torch_control_schema", "torch_control_payload", "tunable_schema"},
    "labels.json": {"config_labels", "metadata_labels", "summary_label"},
}
"""Files whose cases are tests of other modules."""


def cases_of(name: str) -> list[Any]:
    read = json.loads((HERE / name).read_text("utf-8"))
    return list(read["cases"] if isinstance(read, dict) else read)


def test_every_function_of_the_vectors_has_a_test() -> None:
    assert {case["function"] for case in CASES} == HERE_TESTED
    for name, functions in ELSEWHERE.items():
        assert {case["function"] for case in cases_of(name)} == functions
    assert {case["function"].removeprefix("Client.") for case in REQUESTS} == {
        *CALLS,
        "ingest",
        "headers",
    }


def test_all_vectors_are_here_once() -> None:
    ids = Counter(case["id"] for name in ("wire.json", *ELSEWHERE) for case in cases_of(name))
    assert ids.total() == len(ids) == 544


def test_the_answers_module_needs_no_network_library() -> None:
    assert "httpx" not in vars(answers)
