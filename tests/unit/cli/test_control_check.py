"""A command is judged and previewed before it is sent: pure functions over small documents."""

from __future__ import annotations

from typing import Any

import pytest

from launchhelm.cli import _fields
from launchhelm.cli._exit import UsageError
from launchhelm.controls import preview, schema
from launchhelm.controls.fields import fields_text


def capability(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "input_schema": schema.record(fields), "safe_points": ["lht"]}


LR = capability(
    "lr",
    schema.field("scale", schema.number(minimum=0), optional=True),
    schema.field("lr", schema.number(minimum=0), optional=True),
    schema.field("group", schema.number(minimum=0, integer=True), optional=True),
)
EVERY = capability(
    "all_kinds",
    schema.field("count", schema.number(minimum=1, maximum=9, integer=True)),
    schema.field("rate", schema.number(), optional=True),
    schema.field("on", schema.boolean(), optional=True),
    schema.field("mode", schema.choice(["fast", "slow"]), optional=True),
    schema.field("note", schema.text(), optional=True),
    schema.field("layers", schema.listing(schema.number(integer=True)), optional=True),
    schema.field("plan", schema.schedule(), optional=True),
    schema.field("extra", schema.opaque(), optional=True),
)


def test_each_kind_of_field_is_read_by_its_type() -> None:
    words = ["count=3", "rate=1e-5", "on=yes", "mode=fast", "note=a=b c", "layers=[1, 2]"]
    words += ['plan={"points": [{"at": "0", "value": "0.1"}]}', "extra=none"]
    assert _fields.payload_of(words, EVERY) == {
        "count": 3,
        "rate": 1e-5,
        "on": True,
        "mode": "fast",
        "note": "a=b c",
        "layers": [1, 2],
        "plan": {"points": [{"at": "0", "value": "0.1"}]},
        "extra": "none",
    }


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("-2", -2), ("1.0", 1.0), ("1E-3", 1e-3), ("0.5", 0.5)]
)
def test_a_number_keeps_its_class(text: str, expected: float) -> None:
    value = _fields.payload_of([f"lr={text}"], LR)["lr"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("count=1.0", "an integer from 1 to 9"),
        ("count=1_0", "an integer from 1 to 9"),
        ("rate=fast", "a number"),
        ("rate=nan", "a number"),
        ("rate=inf", "a number"),
        ("on=1", "true or false"),
        ("mode=medium", "one of fast, slow"),
        ("layers=1,2", "a JSON list of an integer"),
        ("layers=[NaN]", "a JSON list of an integer"),
        ("plan=[]", "a JSON object"),
        ("fast", '"fast" is not of the form key=value'),
        ("mode=", 'all_kinds takes one of fast, slow for mode, got ""'),
        ("=3", "key=value"),
        ("cont=3", "count"),
    ],
)
def test_a_word_that_does_not_fit_names_the_field_and_what_it_takes(word: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        _fields.payload_of([word], EVERY)
    assert told in f"{caught.value.message} {caught.value.remedy}"


def test_a_zero_has_no_sign_and_a_bound_that_is_excluded_is_said() -> None:
    assert str(_fields.payload_of(["lr=-0.0"], LR)["lr"]) == "0.0"
    assert fields_text(LR).startswith("scale: a number above 0, optional; lr: a number ab")


def test_bounds_that_only_the_rules_know_are_among_what_a_control_takes() -> None:
    assert fields_text(CLIP) == "max_norm: a number above 0, or null for off, optional"
    assert fields_text(DROPOUT).startswith("p: a number from 0 to below 1; skip_zero")


def test_a_field_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        _fields.payload_of(["lr=1", "lr=2"], LR)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"scale": 0.5}, ""),
        ({"lr": 1e-4, "group": 1}, ""),
        ({}, "exactly one of scale and lr"),
        ({"scale": 0.5, "lr": 1.0}, "exactly one of scale and lr"),
        ({"lr": 0}, "a number above 0"),
        ({"lr": -1}, "lr takes a number above 0 for lr, got -1"),
        ({"lr": 1e-4, "group": 2}, "groups 0 to 1"),
        ({"lr": 1e-4, "group": 0.0}, "integer"),
        ({"lr": 1e-60}, "float32 cannot hold"),
        ({"scale": 1e-42}, "float32 cannot hold"),
        ({"scale": 1e-38}, ""),
    ],
)
def test_lr_is_judged_by_schema_and_local_rule(payload: dict[str, Any], problem: str) -> None:
    found = preview.problem_with(LR, payload, {"lr": [3e-4, 3e-5]})
    assert (problem in found) if problem else found == ""


DECAY = {
    "name": "weight_decay",
    "input_schema": schema.record(
        [
            schema.field("value", schema.number(minimum=0), optional=True),
            schema.field("group", schema.number(minimum=0, integer=True), optional=True),
            schema.field("scale", schema.number(minimum=0), optional=True),
            schema.field("skip_zero", schema.boolean(), optional=True),
        ]
    ),
}
CLIP = {
    "name": "grad_clip",
    "input_schema": schema.record([schema.field("max_norm", schema.opaque(), optional=True)]),
}
DROPOUT = {
    "name": "dropout",
    "input_schema": schema.record(
        [
            schema.field("p", schema.number(minimum=0, maximum=1)),
            schema.field("skip_zero", schema.boolean(), optional=True),
        ]
    ),
}
HELD = {"weight_decay": [0.1, 0.0], "grad_clip": None, "dropout": "0.0, 0.1"}


@pytest.mark.parametrize(
    ("capability", "payload", "problem"),
    [
        (DECAY, {"scale": 0.5}, ""),
        (DECAY, {}, "exactly one of value and scale"),
        (DECAY, {"value": 0.1, "scale": 0.5}, "exactly one of value and scale"),
        (DECAY, {"value": 0.1, "group": 2}, "groups 0 to 1"),
        (DECAY, {"value": 0}, ""),
        (DECAY, {"value": 1e-60}, "1e-60 is a number that float32 cannot hold"),
        (DECAY, {"scale": 1e-60}, "1e-61 is a number that float32 cannot hold"),
        (DECAY, {"value": 0.1, "group": 1, "skip_zero": True}, "leave out group"),
        (CLIP, {}, ""),
        (CLIP, {"max_norm": None}, ""),
        (CLIP, {"max_norm": 1}, ""),
        (CLIP, {"max_norm": 0}, "above 0"),
        (CLIP, {"max_norm": "1"}, 'a number above 0 for max_norm, or null for off, got "1"'),
        (CLIP, {"max_norm": True}, "got true"),
        (CLIP, {"max_norm": 1e-60}, "1e-60 is a number that float32 cannot hold"),
        (DROPOUT, {"p": 0.5}, ""),
        (DROPOUT, {"p": 1}, "dropout takes a number from 0 to below 1 for p, got 1"),
        (DROPOUT, {"p": 2.5}, "dropout takes a number from 0 to below 1 for p, got 2.5"),
    ],
)
def test_other_controls_are_judged_by_schema_and_local_rule(
    capability: dict[str, Any], payload: dict[str, Any], problem: str
) -> None:
    found = preview.problem_with(capability, payload, HELD)
    assert (problem in found) if problem else found == ""


@pytest.mark.parametrize(
    ("capability", "payload", "text", "warning"),
    [
        (DECAY, {"scale": 0.5}, "weight_decay group0 0.1 -> 0.05", ""),
        (DECAY, {"scale": 0}, "weight_decay group0 0.1 -> 0", "weight_decay becomes 0"),
        (DECAY, {"value": 0.2, "skip_zero": True}, "weight_decay group0 0.1 -> 0.2", ""),
        (
            DECAY,
            {"value": 0.2},
            "weight_decay group0 0.1 -> 0.2, group1 0 -> 0.2",
            "groups differ now and would become equal; skip_zero=true avoids it",
        ),
        (CLIP, {"max_norm": 0.5}, "grad_clip none -> 0.5", ""),
        (
            DROPOUT,
            {"p": 0.5},
            "dropout 0.0, 0.1 -> 0.5",
            "modules differ now and would become equal; skip_zero=true leaves those at 0 alone",
        ),
        (DROPOUT, {"p": 0.5, "skip_zero": True}, "None", ""),
    ],
)
def test_other_controls_are_previewed(
    capability: dict[str, Any], payload: dict[str, Any], text: str, warning: str
) -> None:
    change = preview.change_of(capability["name"], payload, HELD)
    assert str(change) == text
    assert preview.warnings_for(change, capability, payload) == ([warning] if warning else [])


def test_a_missing_required_field_is_found() -> None:
    assert "count is missing" in preview.problem_with(EVERY, {}, {})


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"scale": 0.5}, "lr group0 3e-4 -> 1.5e-4, group1 3e-5 -> 1.5e-5"),
        ({"lr": 1e-5}, "lr group0 3e-4 -> 1e-5, group1 3e-5 -> 1e-5"),
        ({"lr": 1e-4, "keep_ratios": True}, "lr group0 3e-4 -> 1e-4, group1 3e-5 -> 1e-5"),
        ({"lr": 1e-5, "group": 1}, "lr group1 3e-5 -> 1e-5"),
    ],
)
def test_a_preview_says_old_and_new_per_group(payload: dict[str, Any], text: str) -> None:
    assert str(preview.change_of("lr", payload, {"lr": [3e-4, 3e-5]})) == text


def test_a_tunable_is_previewed_and_a_handler_is_not() -> None:
    assert (
        str(preview.change_of("set_kl", {"value": 0.1}, {"set_kl": 0.05})) == "set_kl 0.05 -> 0.1"
    )
    assert preview.change_of("checkpoint", {}, {"lr": [0.1]}) is None


def test_groups_that_would_become_equal_and_large_factors_are_pointed_out() -> None:
    change = preview.change_of("lr", {"lr": 1e-5}, {"lr": [3e-4, 3e-5]})
    warnings = preview.warnings_for(change, LR, {"lr": 1e-5})
    assert "would become equal" in warnings[0]
    assert warnings[1] == "lr changes by a factor of 0.03333"
    safe = preview.change_of("lr", {"scale": 0.5}, {"lr": [3e-4, 3e-5]})
    assert preview.warnings_for(safe, LR, {"scale": 0.5}) == []


def test_when_says_step_time_and_processes() -> None:
    soon = preview.when(
        step=12480,
        pace_s=2.0,
        calls_per_exchange=1,
        poll_s=1.0,
        first_step=None,
        world_size=512,
    )
    assert str(soon) == "at about step 12,483, in 6 s, on 512 processes"
    later = preview.when(
        step=12480, pace_s=2.0, calls_per_exchange=1, poll_s=1.0, first_step=14000, world_size=1
    )
    assert str(later) == "at about step 14,000, in 50 min, on 1 process"
    unknown = preview.when(
        step=None,
        pace_s=None,
        calls_per_exchange=None,
        poll_s=1.0,
        first_step=None,
        world_size=None,
    )
    assert str(unknown) == "at the next control point"


def test_ranks_in_trouble_are_named_and_many_are_counted() -> None:
    assert preview.trouble_text({0: "ok", 137: "behind"}) == "Rank 137 is behind."
    many = dict.fromkeys(range(9), "silent") | {9: "late"}
    assert preview.trouble_text(many) == "Ranks 0, 1, 2, 3 and 5 more are silent. Rank 9 is late."
    assert preview.trouble_text({0: "ok", 1: "busy"}) == ""


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("grad_clip=none", {"grad_clip": None}),
        ("weight_decay=0.05 0", {"weight_decay": [0.05, 0.0]}),
        ("lr=0.1", {"lr": [0.1, 0.1]}),
        ("lr=[0.1, 0.2]", {"lr": [0.1, 0.2]}),
        ("set_batch=1,024", {"set_batch": 1024}),
        ("set_mode=very slow", {"set_mode": "very slow"}),
        ("set_mode=none", {"set_mode": "none"}),
    ],
)
def test_an_expectation_is_typed_as_the_value_is_shown(word: str, values: dict[str, Any]) -> None:
    assert _fields.expectation([word], values) == (values, [])


def test_an_expectation_that_is_not_met_is_told_as_both_are_shown() -> None:
    _, changed = _fields.expectation(
        ["weight_decay=0.05 0.1", "grad_clip=none"], {"weight_decay": [0.05, 0.0], "grad_clip": 1.0}
    )
    assert changed == ["weight_decay is 0.05 0 now, not 0.05 0.1", "grad_clip is 1 now, not none"]


def test_an_expectation_is_sent_with_the_exact_present_value() -> None:
    values = {"lr": [0.00012345678, 0.00012345678], "set_kl": 0.5}
    assert _fields.expectation(["lr=1.235e-4", "set_kl=0.5"], values) == (values, [])
    _, changed = _fields.expectation(["lr=3e-4"], values)
    assert changed == ["lr is 1.235e-4 now, not 3e-4"]
    for word in ("rate", "=3"):
        with pytest.raises(UsageError, match="takes name=value; this run shows lr, set_kl"):
            _fields.expectation([word], values)
    with pytest.raises(UsageError, match="there is no value of rate; this run shows lr, set_kl"):
        _fields.expectation(["rate=3"], values)


def with_lists(capability: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a control that also takes lists of one number per group."""
    fields = capability["input_schema"]["root"]["fields"]
    lists = [
        schema.field(name, schema.listing(schema.number(minimum=0)), optional=True)
        for name in names
    ]
    return {**capability, "input_schema": schema.record([*fields, *lists])}


EACH_LR, EACH_DECAY = with_lists(LR, "scales", "lrs"), with_lists(DECAY, "values")


@pytest.mark.parametrize(
    ("capability", "payload", "problem"),
    [
        (EACH_LR, {"scales": [0.5, 2]}, ""),
        (EACH_LR, {"lrs": [0.5, 0]}, "a number above 0 for lrs, got 0"),
        (EACH_LR, {"lrs": [0.5]}, "one number per group for lrs, 2 in all"),
        (EACH_LR, {"scales": [0.5, 2], "group": 1}, "leave out group"),
        (EACH_LR, {"scales": [0.5, 2], "lr": 1}, "exactly one of scale, lr, scales and lrs"),
        (EACH_DECAY, {"values": [0.5, 0]}, ""),
        (EACH_DECAY, {"values": [1e-60, 0]}, "1e-60 is a number that float32 cannot hold"),
        (EACH_LR, {"lrs": [0.5, 1e-60]}, "1e-60 is a number that float32 cannot hold"),
        (EACH_DECAY, {"values": [0.5, 0], "skip_zero": True}, "leave out skip_zero"),
        (EACH_DECAY, {"values": [0.5, 0], "value": 1}, "exactly one of value, scale and values"),
    ],
)
def test_one_number_per_group_is_judged_before_it_is_sent(
    capability: dict[str, Any], payload: dict[str, Any], problem: str
) -> None:
    values = {"lr": [3e-4, 3e-5], "weight_decay": [0.1, 0.0]}
    found = preview.problem_with(capability, payload, values)
    assert (problem in found) if problem else found == ""


def test_one_number_per_group_is_foreseen_for_each() -> None:
    values = {"lr": [0.2, 0.1], "weight_decay": [0.1, 0.0]}
    changes = [
        preview.change_of("lr", {"scales": [0.5, 1]}, values),
        preview.change_of("lr", {"lrs": [0.3, 0.4]}, values),
        preview.change_of("weight_decay", {"values": [0.0, 0.5]}, values),
    ]
    assert [each and each.new for each in changes] == [[0.1, 0.1], [0.3, 0.4], [0.0, 0.5]]
    assert preview.warnings_for(changes[0], EACH_LR, {"scales": [0.5, 1]}) == []
    assert _fields.payload_of(["lrs=[0.3, 4e-2]"], EACH_LR) == {"lrs": [0.3, 0.04]}
    assert "lrs: a JSON list of a number above 0, optional" in fields_text(EACH_LR)
