"""The table of `tdn status`: what stands in it and what below it."""

from __future__ import annotations

from tdn.cli import watch

AWAY = {"role": "node", "pid": 7, "alive": True, "ready": False, "why": "no broker takes connections", "sequence": 3}


def test_reasons_stand_below_the_table_once() -> None:
    entries = [{**AWAY, "id": "n1"}, {**AWAY, "id": "n2"}, {**AWAY, "id": "n3", "why": "the disk\x1b[2J is full"}]
    assert watch.row(entries[0])[:4] == ("node", "n1", 7, "not ready")
    empty, all_but_one, last = watch.reasons(entries)
    assert (empty, all_but_one) == ("", "n1, n2: no broker takes connections")
    assert last.startswith("n3: the disk")
    assert "\x1b" not in last


def test_nothing_stands_below_a_network_that_serves() -> None:
    assert watch.reasons([{"role": "broker", "id": "broker", "pid": 1, "alive": True, "ready": True}]) == []


def test_a_guard_that_denies_everything_says_so_in_its_line() -> None:
    guard = {"role": "guard", "id": "g1", "pid": 1, "alive": True, "ready": False, "denies_all": True}
    assert watch.row(guard)[3] == "not ready: denies entities everything"
