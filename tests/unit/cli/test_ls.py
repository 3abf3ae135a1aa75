"""`launchhelm ls`."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli_runs import MadeRun
from tests.unit.cli.conftest import Cli


def test_runs_are_listed_newest_first_with_state_and_step(root: Path, cli: Cli) -> None:
    MadeRun(root, "base").train(98_002).end(step=98_002)
    MadeRun(root, "ctx8k", ranks=2).train(12_480)
    ran = cli("ls")
    head, first, second = ran.out.splitlines()
    assert head.split() == ["RUN", "ID", "STATE", "STEP", "RANKS", "LOSS", "AGE", "PENDING"]
    assert first.split()[0] == "ctx8k"
    assert "running" in first and "12,480" in first
    assert "finished" in second and "98,002" in second
    assert ran.code == 0


def test_ids_are_cut_to_what_tells_them_apart_and_select_the_run(root: Path, cli: Cli) -> None:
    made = [MadeRun(root, "same").train() for _ in range(3)]
    shown = [line.split()[1] for line in cli("ls").out.splitlines()[1:]]
    assert len(set(shown)) == 3
    for run, prefix in zip(reversed(made), shown, strict=True):
        assert run.run_id.startswith(prefix)
        assert cli("show", prefix, "--json").document["id"] == run.run_id


def test_json_gives_one_line_per_run(root: Path, cli: Cli) -> None:
    run = MadeRun(root, extra={"tags": ["night"]}).train()
    (document,) = cli("ls", "--json").lines
    assert document["id"] == run.run_id
    assert document["tags"] == ["night"]
    assert document["state"] == "running"


def test_a_filter_and_a_sort_key_choose_and_order(root: Path, cli: Cli) -> None:
    MadeRun(root, "a", config={"lr": 0.1}).train(5)
    MadeRun(root, "b", config={"lr": 0.2}).train(3)
    MadeRun(root, "c", config={"lr": 0.3})

    def names(*words: str) -> list[str]:
        return [line["name"] for line in cli("ls", "--json", *words).lines]

    assert names("lr>0.15") == ["c", "b"]
    assert names("--sort", "step") == ["b", "a", "c"]
    assert names("--sort", "step", "--reverse") == ["a", "b", "c"]
    assert names("--sort", "loss")[-1] == "c"
    assert names("--sort", "run") == ["a", "b", "c"]
    assert names("--reverse") == ["a", "b", "c"]


def test_a_wrong_column_or_key_names_the_right_ones(cli: Cli) -> None:
    for words in (("--sort", "gain"), ("--columns", "run,gain")):
        ran = cli("ls", *words)
        assert ran.code == 2
        assert "gain" in ran.err and "step" in ran.err


def test_an_unreadable_run_is_a_row_and_exit_3(root: Path, cli: Cli) -> None:
    MadeRun(root, "good").train()
    bad = MadeRun(root, "bad")
    (bad.path / "run.json").chmod(0o600)
    (bad.path / "run.json").write_text("{}")
    ran = cli("ls")
    assert ran.code == 3
    assert "unreadable" in ran.out and "good" in ran.out
    assert bad.run_id in ran.err


def test_an_empty_root_says_where_it_looked(root: Path, cli: Cli) -> None:
    ran = cli("ls")
    assert ran.code == 0 and ran.out == ""
    assert str(root) in ran.err


def test_roots_are_merged_before_and_after_the_verb(tmp_path: Path, cli: Cli) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    MadeRun(first, "one")
    MadeRun(second, "two")
    ran = cli("--root", str(first), "ls", "--json", "--root", str(second))
    assert {line["name"] for line in ran.lines} == {"one", "two"}


def test_a_link_is_not_a_second_listing(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "once").train()
    (root / "latest").symlink_to(run.path)
    (root / "loop").symlink_to(root)
    assert len(cli("ls", "--json").lines) == 1


def test_the_loss_is_found_by_the_names_that_trainers_give_it(root: Path, cli: Cli) -> None:
    logged = {
        "own": {"train/loss": 1.5, "loss": 9.0},
        "hf": {"loss": 2.5, "train_loss": 9.0},
        "lightning": {"train_loss": 3.5},
        "none": {"eval/loss": 4.5},
    }
    for name, metrics in logged.items():
        MadeRun(root, name).journals[0].add("m", metrics, step=1)
    rows = [line.split() for line in cli("ls", "--columns", "run,loss").out.splitlines()[1:]]
    assert dict(rows) == {"own": "1.5", "hf": "2.5", "lightning": "3.5", "none": "-"}
    ordered = cli("ls", "--json", "--sort", "loss").lines
    assert [line["name"] for line in ordered] == ["own", "hf", "lightning", "none"]
