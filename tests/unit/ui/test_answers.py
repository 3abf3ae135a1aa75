"""What the dashboard answers, by the WSGI application without sockets."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm._wording import outcome_text
from launchhelm.records import Command, Outcome
from launchhelm.store import layout, media
from launchhelm.ui import scan
from launchhelm.ui.scan import Scanner
from launchhelm.views.around import around_of
from tests.support.cli_runs import MadeRun, commands_in
from tests.support.dashboard import Dashboard
from tests.support.reading import RunBuilder

ID = "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "runs"
    found.mkdir()
    return found


@pytest.fixture
def run(root: Path) -> MadeRun:
    return MadeRun(root, ranks=2).train()


@pytest.fixture
def ui(root: Path) -> Dashboard:
    return Dashboard(root)


def lr(**more: Any) -> dict[str, Any]:
    return {"id": ID, "name": "lr", "input": {"scale": 0.5}, **more}


def base(run: MadeRun) -> str:
    return f"runs/{run.run_id}"


# --- runs -----------------------------------------------------------------------------------------


def test_an_empty_root_and_one_that_is_not_there_are_answered(root: Path) -> None:
    assert Dashboard(root).get("runs")["total"] == 0
    found = Dashboard(root / "nowhere").get("runs")
    assert found["runs"] == [] and "no directory" in found["unreadable"][0]["reason"]


def test_the_list_says_what_each_run_does_and_filters_and_pages(root: Path) -> None:
    made = [MadeRun(root, f"run-{n}", extra={"tags": [f"t{n % 2}"]}).train(n) for n in range(5)]
    made[0].end()
    ui = Dashboard(root)
    rows = ui.get("runs")["runs"]
    assert [row["name"] for row in rows] == [f"run-{n}" for n in (4, 3, 2, 1, 0)]
    assert rows[0]["last"] == {"name": "train/loss", "value": 2.25}
    assert (rows[0]["state"], rows[-1]["state"]) == ("running", "finished")
    assert ui.get("runs")["counts"] == {"running": 4, "finished": 1}
    names = [row["name"] for row in ui.get("runs", q="state:running tag:t1")["runs"]]
    assert names == ["run-3", "run-1"]
    by_step = ui.get("runs", q="lr=0.01", sort="step")["runs"]
    assert [row["step"] for row in by_step] == [1, 2, 3, 4, 400]
    first = ui.get("runs", limit=2)
    second = ui.get("runs", limit=2, after=first["after"])
    assert [row["name"] for row in second["runs"]] == ["run-2", "run-1"]
    assert ui.get("runs", limit=2, after=second["after"])["after"] == ""
    answer = ui.ask("GET", "/api/1/runs", query="q=step<x")
    assert (answer.status, answer.code) == (422, "bad_filter")


def test_copies_of_one_run_are_rows_that_open_their_own_directory(root: Path) -> None:
    run = MadeRun(root, "first").train()
    for name in ("a", "b"):
        shutil.copytree(run.path, root / name)
    ui = Dashboard(root)
    rows = ui.get("runs")["runs"]
    assert len({row["id"] for row in rows}) == 3
    for row in rows:
        assert ui.get(f"runs/{row['id']}")["path"] == row["path"]
        assert ui.get(f"runs/{row['id']}")["id"] == row["id"]
    answer = ui.ask("GET", f"/api/1/{base(run)}")
    assert (answer.status, answer.code) == (409, "ambiguous")


def test_a_damaged_run_is_a_row_with_its_reason(root: Path) -> None:
    run = MadeRun(root).train()
    (run.path / "run.json").write_text("{")
    ui = Dashboard(root)
    found = ui.get("runs")
    assert found["runs"][0]["state"] == "unreadable"
    assert str(run.path) in found["unreadable"][0]["path"]
    answer = ui.ask("GET", f"/api/1/runs/{run.path.name}")
    assert answer.status == 503 and answer.document["error"]["happened"]


def test_a_run_is_found_by_its_beginning_and_a_single_run_may_be_the_root(run: MadeRun) -> None:
    ui = Dashboard(run.path)
    found = ui.get(f"runs/{run.run_id[:20]}")
    assert (found["id"], found["step"], found["world_size"]) == (run.run_id, 400, 2)
    assert found["config"] == {"lr": 0.01} and found["rights"]["can_control"]
    assert ui.ask("GET", "/api/1/runs/0000-nothing").code == "no_such_run"


def test_a_run_that_goes_on_is_seen_and_a_finished_one_is_not_read_again(
    run: MadeRun, ui: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = MadeRun(run.path.parent, "done").train().end()
    assert len(ui.get("runs")["runs"]) == 2
    looked: list[Path] = []
    from launchhelm.ui import board

    summarise = board.summarise

    def noting(directory: Path, observer: Any, watches: Any) -> Any:
        looked.append(directory)
        return summarise(directory, observer, watches)

    monkeypatch.setattr(board, "summarise", noting)
    monkeypatch.setattr(board, "LIVE_S", 0.0)
    monkeypatch.setattr(board, "IDLE_S", 0.0)
    run.journals[0].beat(500, 2)
    rows = {row["name"]: row["step"] for row in ui.get("runs")["runs"]}
    assert rows == {"ddp-run": 500, "done": 400}
    assert looked == [run.path] and done.path != run.path


# --- curves ---------------------------------------------------------------------------------------


def test_curves_are_strict_json_with_nan_marked(root: Path) -> None:
    made = RunBuilder(root)
    writer = made.writer(0)
    for step in range(50):
        loss = math.nan if step == 7 else math.inf if step == 8 else 1.0 / (step + 1)
        writer.metrics(step, **{"train/loss": loss, "phase": "warm" if step < 9 else "hot"})
    writer.flush()
    ui = Dashboard(root)
    id_ = ui.get("runs")["runs"][0]["id"]
    names = {each["name"]: each for each in ui.get(f"runs/{id_}/metrics")["metrics"]}
    assert (names["train/loss"]["kind"], names["phase"]["kind"]) == ("number", "string")
    assert names["train/loss"]["group"] == "train" and names["train/loss"]["ranks"] == [0]
    found = ui.get(f"runs/{id_}/series", name=["train/loss", "phase"], smooth=0.5)
    loss, phase = found["series"]
    assert loss["exact"] and loss["points"] == 50 and len(loss["x"]) == 48
    assert loss["odd"] == [{"x": 7, "nan": 1}, {"x": 8, "inf": 1}]
    assert len(loss["smooth"]["y"]) == 48 and (found["from"], found["to"]) == (0, 49)
    assert phase["kind"] == "string" and phase["y"][8:10] == ["warm", "hot"]
    zoomed = ui.get(f"runs/{id_}/series", name="train/loss", from_=10, to=20)["series"][0]
    assert zoomed["x"] == list(range(10, 21))
    for query in ("", "name=a&from=x", "name=a&from=2&to=1", "name=a&smooth=1", "name=a&px=q"):
        answer = ui.ask("GET", f"/api/1/runs/{id_}/series", query=query)
        assert answer.status == 400, query


def test_a_metric_with_an_odd_name_is_found_by_what_is_shown_of_it(root: Path) -> None:
    made = RunBuilder(root)
    writer = made.writer(0)
    writer.metrics(1, **{"a/\u202eb\x1b": 1.5})
    writer.flush()
    ui = Dashboard(root)
    id_ = ui.get("runs")["runs"][0]["id"]
    shown = ui.get(f"runs/{id_}/metrics")["metrics"][0]["name"]
    assert shown == "a/\\u202eb\\x1b"
    assert ui.get(f"runs/{id_}/series", name=shown)["series"][0]["y"] == [1.5]


def test_each_rank_and_an_axis_of_the_users_own_can_be_shown(root: Path) -> None:
    made = RunBuilder(root)
    for rank in range(3):
        writer = made.writer(rank)
        for step in range(5):
            writer.record("m", {"loss": rank + step}, step=step, axes={"tokens": str(100 * step)})
        writer.flush()
    ui = Dashboard(root)
    id_ = ui.get("runs")["runs"][0]["id"]
    every = ui.get(f"runs/{id_}/series", name="loss", rank="all")["series"]
    assert [(each["rank"], each["y"][0]) for each in every] == [(0, 0.0), (1, 1.0), (2, 2.0)]
    tokens = ui.get(f"runs/{id_}/series", name="loss", x="tokens", rank=1)["series"][0]
    assert tokens["x"] == [0, 100, 200, 300, 400]


# --- commands -------------------------------------------------------------------------------------


def test_a_command_is_checked_then_written_once_and_shown_as_the_terminal_says_it(
    run: MadeRun, ui: Dashboard
) -> None:
    checked = ui.post(f"{base(run)}/commands/check", lr())
    assert checked.document["valid"] and commands_in(run.path) == []
    assert checked.document["text"][0].startswith("lr 0.01 -> 0.005 in 2 groups")
    assert "on 2 processes" in checked.document["when"]
    first = ui.post(f"{base(run)}/commands", lr(reason="noisy"))
    assert first.status == 201
    # Whoever sent it sees it at once.
    assert [each["id"] for each in ui.get(f"{base(run)}/commands")["commands"]] == [ID]
    assert ui.post(f"{base(run)}/commands", lr(reason="noisy")).status == 200
    other = ui.post(f"{base(run)}/commands", lr(input={"scale": 0.1}))
    assert (other.status, other.code) == (409, "other_body")
    (body,) = commands_in(run.path)
    assert (body["kind"], body["args"], body["reason"]) == ("lr", {"scale": 0.5}, "noisy")
    (entry,) = ui.get(f"{base(run)}/commands")["commands"]
    assert (entry["id"], entry["state"], entry["can_cancel"]) == (ID, "waiting", True)
    view = views.open_run(run.path)
    command = view.command(ID)
    assert command is not None
    sentence = outcome_text(command, around_of(view, command=command))
    assert entry["text"].split(":")[0] == str(sentence).split(":")[0]


def test_an_applied_command_says_on_all_and_offers_its_way_back(
    run: MadeRun, ui: Dashboard
) -> None:
    changes = {"lr": {"old": [0.01, 0.01], "new": [0.005, 0.005]}}
    outcome = Outcome("", "applied", applied_at={"step": 410}, applied_on=2, of=2, changes=changes)
    run.conclude(Command(ID, "lr", {"scale": 0.5}, issued_by="bob"), outcome)
    run.report({"lr": [0.005, 0.005], "set_kl": 0.5}, step=412)
    (entry,) = ui.get(f"{base(run)}/commands")["commands"]
    assert entry["text"].startswith("Applied at step 410 on all 2 processes")
    assert (entry["mark"], entry["applied_step"], entry["tone"]) == ("▲", 410, "good")
    assert entry["applied_on"] == {"count": 2, "of": 2} and not entry["can_cancel"]
    assert entry["can_revert"] and len(entry["undo"]) == 1
    undo = entry["undo"][0]
    sent = ui.post(
        f"{base(run)}/commands",
        {"id": ID[:-1] + "9", "name": "lr", "reverts": ID, "confirmed": True, **undo},
    )
    assert sent.status == 201, sent.data
    assert commands_in(run.path)[0]["reverts"] == ID


def test_what_curves_did_after_a_command_is_said_as_a_comparison(root: Path) -> None:
    run = MadeRun(root, ranks=2)
    for step in range(200):
        values = {"train/loss": 2.0 - 0.5 * (step >= 100) + 0.01 * (step % 3), "grad_norm": 1.0}
        run.journals[0].add("m", values, step=step)
    outcome = Outcome("", "applied", applied_at={"step": 100}, applied_on=2, of=2)
    run.conclude(Command(ID, "lr", {"scale": 0.5}), outcome)
    run.conclude(Command("other-one", "lr", {"lr": -1}), Outcome("", "rejected"))
    ui = Dashboard(root)
    said = ui.get(f"{base(run)}/effect", command=ID)
    assert {each["name"]: each["text"] for each in said["metrics"]} == {
        "train/loss": "lower than its trend by 0.5",
        "grad_norm": "no clear change",
    }
    assert said["text"] == "A comparison in time, not a proof of cause."
    assert ui.ask("GET", f"/api/1/{base(run)}/effect", query="command=other-one").status == 409


def test_a_jump_that_nothing_explains_stands_beside_what_curves_did(root: Path) -> None:
    run = MadeRun(root)
    rates = {0: 1e-3, 100: 5e-4, 130: 1e-4, 190: 1e-5}
    rate = 0.0
    for step in range(200):
        rate = rates.get(step, rate)
        values = {"train/loss": 2.0 + 0.01 * (step % 3), "optim/lr/group0": rate}
        run.journals[0].add("m", values, step=step)
    outcome = Outcome("", "applied", applied_at={"step": 100}, applied_on=1, of=1)
    run.conclude(Command(ID, "lr", {"scale": 0.5}), outcome)
    # The command's own jump is explained, and the last one is after the points that count.
    assert Dashboard(root).get(f"{base(run)}/effect", command=ID)["beside"] == [
        "optim/lr/group0 5e-4 -> 1e-4 at step 130, which nothing explains"
    ]


def test_an_unknown_outcome_heads_the_page_and_is_never_green(run: MadeRun, ui: Dashboard) -> None:
    outcome = Outcome("", "outcome_unknown", applied_on=1, of=2, rolled_back=False)
    run.conclude(Command(ID, "lr", {"scale": 0.5}), outcome)
    found = ui.get(base(run))
    assert found["tabs"]["controls_unknown"] == 1
    assert "1 of 2 processes reported success" in found["headline"][0]["text"]
    (entry,) = ui.get(f"{base(run)}/commands")["commands"]
    assert (entry["mark"], entry["tone"]) == ("?", "unknown")
    guards = ui.post(f"{base(run)}/commands/check", lr(id="x")).document["guards"]
    assert "unknown" in [each["rule"] for each in guards]


def test_what_cannot_be_is_refused_by_field_and_nothing_is_written(
    run: MadeRun, ui: Dashboard
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (lr(input={"lr": -1}), "lr"),
        (lr(input={}), "input"),
        (lr(input={"scale": 2, "wrong": 1}), "input"),
        (lr(name="nothing"), "name"),
        (lr(first_step=-1), "first_step"),
        (lr(first_step=20, last_step=10), "last_step"),
        (lr(id="no/good"), "id"),
    ]
    for body, field in cases:
        answer = ui.post(f"{base(run)}/commands", body)
        assert answer.status == 422, body
        assert list(answer.document["error"]["fields"]) == [field], answer.document
    for data in (b"[]", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b'{"a": 1e999}', b""):
        assert ui.ask("POST", f"/api/1/{base(run)}/commands", data).status == 400, data
    assert commands_in(run.path) == []


def test_a_bold_command_wants_to_be_confirmed(run: MadeRun, ui: Dashboard) -> None:
    bold = lr(input={"scale": 100})
    guards = ui.post(f"{base(run)}/commands/check", bold).document["guards"]
    assert [each["rule"] for each in guards] == ["value"]
    answer = ui.post(f"{base(run)}/commands", bold)
    assert (answer.status, answer.code) == (409, "not_confirmed")
    assert ui.post(f"{base(run)}/commands", {**bold, "confirmed": True}).status == 201


def test_changed_meanwhile_is_refused(run: MadeRun, ui: Dashboard) -> None:
    answer = ui.post(f"{base(run)}/commands", lr(expected={"lr": [0.02, 0.02]}))
    assert (answer.status, answer.code) == (409, "changed_meanwhile")
    assert "lr is 0.01 now, not 0.02" in answer.document["error"]["happened"]
    assert ui.post(f"{base(run)}/commands", lr(expected={"lr": [0.01, 0.01]})).status == 201


def test_a_command_is_cancelled_and_the_controls_frozen_by_the_same_door(
    run: MadeRun, ui: Dashboard
) -> None:
    assert ui.post(f"{base(run)}/commands", lr()).status == 201
    assert ui.post(f"{base(run)}/commands/{ID}/cancel", {}).status == 201
    assert ui.post(f"{base(run)}/commands/nothing/cancel", {}).status == 404
    freeze = {"id": "freeze-it-now", "name": "run:freeze", "input": {}}
    assert ui.post(f"{base(run)}/commands", freeze).status == 201
    kinds = sorted(body["kind"] for body in commands_in(run.path))
    assert kinds == ["lr", "run:cancel", "run:freeze"]


def test_a_run_that_has_ended_takes_no_command(root: Path) -> None:
    run = MadeRun(root).train().end()
    ui = Dashboard(root)
    checked = ui.post(f"{base(run)}/commands/check", lr()).document
    assert not checked["valid"] and "has ended" in checked["text"][0]
    assert ui.post(f"{base(run)}/commands", lr()).code == "refused"


# --- the other tabs -------------------------------------------------------------------------------


def test_controls_carry_their_schema_and_values(run: MadeRun, ui: Dashboard) -> None:
    found = {each["name"]: each for each in ui.get(f"{base(run)}/controls")["controls"]}
    assert found["lr"]["text"] == "0.01" and found["lr"]["kind"] == "state"
    assert found["lr"]["schema"]["root"]["kind"] == "record"


def test_the_stalled_rank_is_named_in_the_header_and_in_the_table(root: Path) -> None:
    run = MadeRun(root, ranks=2).train()
    run.journals[1].add("ev", {"type": "note"})
    ui = Dashboard(root)
    table = ui.get(f"{base(run)}/processes")
    assert [row[table["columns"].index("rank")] for row in table["rows"]] == [0, 1]
    assert table["world_size"] == 2 and table["late_s"] == 45
    strip = ui.get(f"{base(run)}/skew")
    assert strip["measure"] == "step" and strip["rows"] == 2


def test_console_lines_are_numbered_found_and_escaped(root: Path) -> None:
    made = RunBuilder(root)
    writer = made.writer(0)
    for line in range(3000):
        text = f"line {line}\x1b[31mred\x1b[0m\x1b[2J" if line == 5 else f"line {line}"
        writer.record("con", {"text": text, "stream": line % 2})
    writer.flush()
    ui = Dashboard(root)
    path = f"runs/{ui.get('runs')['runs'][0]['id']}/console"
    newest = ui.get(path)
    assert newest["total"] == 3000 and len(newest["lines"]) == 2000
    assert newest["lines"][-1]["text"] == "line 2999" and newest["lines"][0]["n"] == 1000
    odd = ui.get(path, from_=5, count=1)["lines"][0]
    assert odd["text"] == "line 5\x1b[31mred\x1b[0m\\x1b[2J"
    assert ui.get(path, find="LINE 299")["hits"] == [299, *range(2990, 3000)]
    assert ui.get(path, stream="err")["total"] == 1500
    writer.record("con", {"text": "more", "stream": "stdout"})
    writer.flush()
    assert ui.get(path)["total"] == 3001


def test_media_and_files_are_listed_and_their_bytes_come_in_ranges(root: Path) -> None:
    made = RunBuilder(root)
    stored = media.put(made.directory, [b"\x89PNG\r\n\x1a\n" + bytes(range(200))])
    writer = made.writer(0)
    source = {"artifact": {"id": f"pending:{stored.sha256}", "sha256": stored.sha256}}
    item = {"source": source, "media_type": "image/png", "caption": "a\x1bb"}
    writer.record("rich", {"name": "shot", "renderer": "media", "value": {"items": [item]}}, step=3)
    gone = {**item, "source": {"artifact": {"id": f"pending:{'b' * 64}", "sha256": "b" * 64}}}
    writer.record("rich", {"name": "shot", "renderer": "media", "value": {"items": [gone]}}, step=4)
    body = {"id": "artifact-1", "name": "w.pt", "size": 208, "sha256": stored.sha256, "format": 1}
    writer.record("art", body, step=3)
    writer.flush()
    ui = Dashboard(root)
    id_ = ui.get("runs")["runs"][0]["id"]
    shown = ui.get(f"runs/{id_}/media", name="shot", step=3)
    assert (shown["names"], shown["steps"]) == (["shot"], [3, 4])
    (one,) = shown["items"]
    assert (one["digest"], one["size"], one["caption"]) == (stored.sha256, 208, "a\\x1bb")
    assert ui.get(f"runs/{id_}/media", name="shot")["items"][0]["missing"]
    files = ui.get(f"runs/{id_}/files")
    assert (files["files"][0]["kind"], files["files"][0]["state"]) == ("checkpoint", "ready")
    assert "run.json" in [each["path"] for each in files["own"]]
    part = ui.ask("GET", f"/api/1/blobs/{stored.sha256}", Range="bytes=8-11")
    assert (part.status, part.data) == (206, bytes(range(4)))
    assert part.headers["Content-Range"] == "bytes 8-11/208"


# --- news -----------------------------------------------------------------------------------------


def test_an_unchanged_run_costs_no_data_requests_and_a_change_is_told_once(
    run: MadeRun, ui: Dashboard
) -> None:
    cursor = ui.get("changes", watch=run.run_id)["cursor"]

    def news() -> Any:
        query = f"watch={run.run_id}&cursor={cursor}"
        answer = ui.ask("GET", "/api/1/changes", query=query)
        return answer.document if answer.status == 200 else None

    first = news()
    cursor = first["cursor"] if first else cursor
    assert news() is None
    run.journals[0].add("m", {"train/loss": 1.0}, step=401)
    told = news()
    mine = [each for each in told["changes"] if each["run"] == run.run_id]
    assert mine[0]["what"] == ["points", "console", "media"]
    cursor = told["cursor"]
    assert news() is None
    assert ui.post(f"{base(run)}/commands", lr()).status == 201
    assert "commands" in news()["changes"][0]["what"]


def test_a_run_whose_directory_is_gone_ends_no_stream_and_is_told_once(
    run: MadeRun, ui: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the page takes it for a lost connection."""
    monkeypatch.setattr(scan, "KEEP_ALIVE_S", 0.05)
    scanner = Scanner(ui.board, poll_s=0.05)
    news = scanner.stream([run.run_id, "never-there"], "")
    try:
        next(news)
        shutil.rmtree(run.path)
        monkeypatch.setattr(ui.board, "_listed_at", -1e9)
        told = [next(news) for _ in range(40)]
    finally:
        scanner.close()
    gone = [text for text in told if run.run_id.encode() in text and b"points" in text]
    assert len(gone) == 1, told
    assert ui.ask("GET", f"/api/1/{base(run)}").code == "no_such_run"


def test_a_command_that_came_and_went_between_two_looks_is_told(
    run: MadeRun, ui: Dashboard
) -> None:
    scanner = Scanner(ui.board)
    cursor = (scanner.changes([run.run_id], "") or {})["cursor"]
    cursor = (scanner.changes([run.run_id], cursor) or {"cursor": cursor})["cursor"]
    control = run.path / layout.CONTROL
    control.mkdir(exist_ok=True)
    (control / "there").touch()
    (control / "there").unlink()
    told = scanner.changes([run.run_id], cursor)
    assert told is not None and "commands" in told["changes"][0]["what"]


def test_the_stream_tells_the_same_and_ends_its_thread_with_its_last_reader(
    run: MadeRun, ui: Dashboard
) -> None:
    scanner = Scanner(ui.board, poll_s=0.02)
    stream = scanner.stream([run.run_id], "")
    assert next(stream).startswith(b'data: {"cursor":')
    run.journals[0].add("m", {"train/loss": 1.0}, step=401)
    while b'"points"' not in (part := next(stream)):
        assert part.startswith((b"data: ", b": "))
    thread = scanner._thread
    assert thread is not None
    stream.close()
    thread.join(20)
    assert not thread.is_alive()
