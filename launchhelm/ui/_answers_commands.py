"""Answers about controls and commands, and all that is ever written: a command in the inbox."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._wording import outcome_text, plain
from launchhelm.controls import fields, orders, preview, schema
from launchhelm.records import CANCEL, FREEZE, UNFREEZE, Command
from launchhelm.ui._answers_runs import rights
from launchhelm.ui.board import NOTHING_SENT, Board
from launchhelm.ui.request import Problem
from launchhelm.views.around import around_of
from launchhelm.views.guards import Guard, guards, queue
from launchhelm.views.plan import command_for, plan_of, refusal_of, values_of
from launchhelm.views.replay import MAX_STEP, replay_documents
from launchhelm.views.revert import CannotUndo, undoing

Json = dict[str, Any]  # Any: JSON.

ID: Final = re.compile(r"[0-9A-Za-z_-]{8,128}", re.ASCII)
_FREEZING: Final = (FREEZE, UNFREEZE)


# Looking ------------------------------------------------------------------------------------


def commands(board: Board, view: views.RunView) -> Json:
    """Return the ledger, newest first."""
    every = view.commands
    reverted = {each.reverts: each.id for each in every if each.reverts and _is_applied(each)}
    may, replays = rights(board, view)["can_control"], replay_documents(view)
    return {
        "commands": [
            {**_entry(each, view, reverted, may=may), "replay": replays.get(each.id)}
            for each in reversed(every)
        ],
        "frozen": plain(views.frozen(every)),
        "no_replay": board.no_replay(),
        "cursor": "",
    }


def _entry(
    command: views.CommandView, view: views.RunView, reverted: Mapping[str, str], *, may: bool
) -> Json:
    sentence = outcome_text(command, around_of(view, command=command))
    outcome = command.outcome
    step = outcome.applied_at.get("step") if outcome is not None else None
    text = str(step)
    counted = outcome is not None and outcome.applied_on is not None and outcome.of is not None
    who = command.owner or command.issued_by
    undo = _undo_of(view, command)
    return {
        "id": command.id,
        "name": plain(command.name),
        "input": dict(command.payload),
        "reason": plain(command.reason),
        "issued_by": plain(who),
        "claims": plain(command.issued_by) if command.issued_by not in ("", who) else "",
        "via": "server" if _of_server(command) else "",
        "issued_at": command.issued_at,
        "first_step": command.first_step,
        "last_step": command.last_step,
        "state": command.state,
        "text": str(sentence),
        "head": sentence.head,
        "tone": sentence.tone,
        "mark": sentence.mark,
        "applied_step": int(text) if re.fullmatch(r"-?\d{1,15}", text) else None,
        "applied_on": {"count": outcome.applied_on, "of": outcome.of}
        if counted and outcome is not None
        else None,
        "changes": dict(outcome.changes) if outcome is not None else {},
        "code": plain(outcome.code) if outcome is not None else "",
        "failures": [list(each) for each in outcome.failures] if outcome is not None else [],
        "result": outcome.result if outcome is not None else None,
        "effect": command.effect,
        "states": [
            {"state": each.state, "at": each.at, "where": _where(each)} for each in command.states
        ],
        "reverts": command.reverts,
        "replays": plain(command.replays),
        "reverted_by": reverted.get(command.id, ""),
        "seen": False,
        "can_cancel": may and command.is_pending and command.state != "applying",
        "can_revert": may and undo is not None and not view.state.is_over,
        "undo": [{"input": payload, "expected": expected} for payload, expected in undo or ()],
    }


def _undo_of(
    view: views.RunView, command: views.CommandView
) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
    if not _is_applied(command) or command.name not in view.capabilities:
        return None
    try:
        step = undoing(view, command)
    except CannotUndo:
        return None
    return [step] if step is not None else None


def _is_applied(command: views.CommandView) -> bool:
    return command.state == "applied"


def _of_server(command: views.CommandView) -> bool:
    known = command.command or command.outcome
    return bool(known is not None and known.server)


def _where(state: views.CommandState) -> str:
    at = f"step {_wording.step_text(state.step)}, " if state.step is not None else ""
    return f"{at}attempt {state.attempt}"


def controls(board: Board, view: views.RunView) -> Json:
    """Return what may be changed, as the run registered it, with its values now."""
    values = values_of(view)
    return {
        "controls": [
            {
                "name": plain(name),
                "schema": capability.get("input_schema"),
                "values": values.get(name),
                "text": plain(_wording.values_text(values[name])) if name in values else "",
                "one_of": [preview.one_of(capability)] if preview.one_of(capability) else [],
                "takes": [plain(each) for each in fields.field_texts(capability)],
                "hints": _hints(name, capability),
                "needed": fields.NEEDED.get(name, ()),
                "effect": capability.get("effect", ""),
                "requires_approval": bool(capability.get("requires_approval")),
                "safe_points": list(capability.get("safe_points") or ()),
                "kind": "state" if name in values else "handler",
            }
            for name, capability in view.capabilities.items()
        ],
        "refusal": refusal_of(view),
        "rights": rights(board, view),
    }


def _hints(name: str, capability: fields.Capability) -> dict[str, str]:
    """Say what each field takes, as it is typed into a form."""
    hints = {}
    for field, (node, _) in fields.fields_of(fields.root_of(capability)).items():
        text = fields.field_text(name, field, node)
        hints[field] = plain("anything, as JSON" if text == "anything" else text)
    return hints


# Giving -------------------------------------------------------------------------------------


def check(board: Board, view: views.RunView, body: Json) -> Json:
    """Say what a command would do. Writes nothing."""
    command, problems = _read(view, body)
    problems |= board.misfits(command)
    answer: Json = {
        "valid": not problems,
        "fields": problems,
        "text": [],
        "when": "",
        "guards": [],
        "queue": [],
        "expected": _expected(view, command.name),
        "seen": _last_change(view, command.name),
        "rights": rights(board, view),
    }
    refusal = _refusal(view, command)
    if refusal:
        return {**answer, "valid": False, "text": [refusal]}
    if problems:
        return answer
    if command.name in _FREEZING:
        return {**answer, "text": [_order_text(command.name)]}
    plan = plan_of(view, command)
    return {
        **answer,
        "text": plan.preview(),
        "when": str(plan.when),
        "guards": [guard_document(each) for each in guards(view, plan)],
        "queue": queue(view, command.name),
    }


def give(board: Board, view: views.RunView, body: Json) -> tuple[int, Json]:
    """Put a command into the inbox, and return the status and what was written.

    Raises:
        Problem: 403, 409 or 422; nothing was written.
    """
    require_rights(board, view)
    id_ = body.get("id")
    if not isinstance(id_, str) or ID.fullmatch(id_) is None:
        raise bad({"id": "8 to 128 letters, digits, - and _"})
    command, problems = _read(view, body, id=id_)
    problems |= board.misfits(command)
    known = view.command(board.known_as(id_))
    if known is not None:
        # Sent again, after an answer that was lost.
        if problems or not _is_same(known, command):
            raise Problem(409, "other_body", "That id is another command's.", kept=NOTHING_SENT)
        return 200, {"id": known.id, "written": True}
    if problems:
        raise bad(problems)
    refusal = _refusal(view, command)
    if refusal:
        raise Problem(409, "refused", refusal, kept=NOTHING_SENT)
    changed = _changed(command, values_of(view)) or _commanded(view, command.name, body)
    if changed:
        raise Problem(
            409,
            "changed_meanwhile",
            f"Changed meanwhile: {changed}.",
            kept=NOTHING_SENT,
            remedy="Look again.",
        )
    if command.name not in _FREEZING:
        require_confirmed(guards(view, plan_of(view, command)), body.get("confirmed"))
    return 201, {"id": board.send(view, command), "written": True}


def cancel(board: Board, view: views.RunView, id_: str, body: Json) -> Json:
    """Take a command back that has not begun.

    Raises:
        Problem: 403, 404 or 409; nothing was written.
    """
    require_rights(board, view)
    command = view.command(id_)
    if command is None:
        raise Problem(
            404, "no_such_command", "The run has no command of that id.", kept=NOTHING_SENT
        )
    if not command.is_pending or command.state == "applying":
        text = str(outcome_text(command, around_of(view, command=command)))
        raise Problem(409, "too_late", f"Too late: {text}.", kept=NOTHING_SENT)
    order = _made(CANCEL, {"id": id_}, reason=_text(body, "reason"))
    return {"id": board.send(view, order), "written": True}


def _read(view: views.RunView, body: Json, **more: Any) -> tuple[Command, dict[str, str]]:
    """Make a command of a request, and say by field what is wrong with it."""
    name, payload = body.get("name"), body.get("input", {})
    if not isinstance(name, str) or not isinstance(payload, dict):
        raise bad({"name": "the name of a control, and input an object"})
    problems: dict[str, str] = {}
    steps: dict[str, int | None] = {}
    for key in ("first_step", "last_step"):
        value = body.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 0 <= value < MAX_STEP):
            problems[key] = "a step from 0 on"
            value = None
        steps[key] = value
    first, last = steps["first_step"], steps["last_step"]
    if first is not None and last is not None and last < first:
        problems["last_step"] = "it is before the first step"
    expected = body.get("expected") or {}
    if not isinstance(expected, dict):
        problems["expected"] = "an object"
        expected = {}
    said = {"reason": _text(body, "reason"), "reverts": _text(body, "reverts")}
    command = _made(name, payload, **steps, expected=expected, **said, **more)
    if name in _FREEZING:
        problem = schema.check(orders.SCHEMAS[name], payload)
        return command, {"input": problem} if problem else problems
    capability = view.capabilities.get(name)
    if capability is None:
        known = _wording.listed(view.capabilities)
        problems["name"] = f"This run has no control {_wording.json_text(name)}. It has {known}."
        return command, problems
    problem = preview.problem_with(capability, payload, values_of(view))
    if problem:
        problems[_field_of(problem, name, capability)] = f"{problem}."
    return command, problems


def _field_of(problem: str, name: str, capability: fields.Capability) -> str:
    """Return the field that a problem is about, "input" when it is about several."""
    known = fields.fields_of(fields.root_of(capability))
    # "lr: scale must be a number", or "lr takes a number above 0 for scale".
    begins = rf"{re.escape(name)}(: | takes .* for )"
    return next((it for it in known if re.match(rf"{begins}{re.escape(it)}\b", problem)), "input")


def _made(name: str, payload: Json, **more: Any) -> Command:
    try:
        return command_for(name, payload, **more)
    except ValueError as error:
        raise bad({"input": f"{error}."}) from None


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def bad(problems: dict[str, str]) -> Problem:
    """Make the error that says by field what is wrong."""
    said = "; ".join(f"{name}: {why}" for name, why in problems.items())
    problem = Problem(422, "invalid", said, kept=NOTHING_SENT)
    problem.fields = problems
    return problem


def _refusal(view: views.RunView, command: Command) -> str:
    frozen = bool(views.frozen(view.commands))
    if command.name == FREEZE and frozen:
        return plain(views.frozen(view.commands))
    if command.name == UNFREEZE:
        return "" if frozen else "The controls are not frozen."
    return refusal_of(view)


def _order_text(name: str) -> str:
    return "No command will act until `unfreeze`." if name == FREEZE else "Commands act again."


def require_rights(board: Board, view: views.RunView) -> None:
    """Refuse whoever may not control a run.

    Raises:
        Problem: 403.
    """
    may = rights(board, view)
    if not may["can_control"]:
        raise Problem(403, "not_permitted", f"{may['reason']}.", kept=NOTHING_SENT)


def require_confirmed(found: Sequence[Guard], confirmed: object) -> None:
    """Refuse what was not confirmed: true for all plain guards, or what had to be typed.

    Raises:
        Problem: 409.
    """
    typed = [each.typed for each in found if each.typed]
    if typed and confirmed not in typed:
        raise Problem(409, "not_confirmed", found[-1].text, kept=NOTHING_SENT, remedy="Confirm it.")
    if found and not confirmed:
        said = "; ".join(each.text.rstrip(".") for each in found)
        raise Problem(409, "not_confirmed", f"{said}.", kept=NOTHING_SENT, remedy="Confirm it.")


def guard_document(guard: Guard) -> Json:
    """Return one reason to confirm as it is answered."""
    return {"rule": guard.rule, "text": guard.text, "typed": guard.typed}


def _expected(view: views.RunView, name: str) -> Json:
    """Return the value that a command is for; none of a rate, which its schedule may move."""
    values = values_of(view)
    return {name: values[name]} if name in values and name != "lr" else {}


def _last_change(view: views.RunView, name: str) -> str:
    """Return the newest command of a control that was applied or may have been, "" for none."""
    acted = ("applied", "applying", "outcome_unknown")
    found = [each.id for each in view.commands if each.name == name and each.state in acted]
    return found[-1] if found else ""


def _commanded(view: views.RunView, name: str, body: Json) -> str:
    """Say which command has changed the control since the sender looked."""
    newest = _last_change(view, name)
    command = view.command(newest)
    if command is None or body.get("seen") in (None, newest):
        return ""
    who = plain(command.owner or command.issued_by or "nobody known")
    return f"{who} has sent {plain(name)} {_wording.payload_text(command.payload)}, {newest}"


def _changed(command: Command, values: Mapping[str, Any]) -> str:
    """Say what differs from what the sender saw."""
    said = []
    for name, seen in command.expected.items():
        if values.get(name) != seen:
            now, before = _wording.distinct(values.get(name), seen)
            said.append(f"{plain(name)} is {now} now, not {before}")
    return "; ".join(said)


def _is_same(known: views.CommandView, command: Command) -> bool:
    return (
        known.name == command.name
        and dict(known.payload) == dict(command.payload)
        and known.first_step == command.first_step
        and known.last_step == command.last_step
    )
