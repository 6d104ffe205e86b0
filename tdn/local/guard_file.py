"""`guard.toml`: what the operator of one guard sets, in the folder with its credentials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tdn.local import observe_section
from tdn.observe.settings import ObserveSettings
from tdn.settings_file import Address, Key, Section, SettingsFile, Url, Whole, split_address

GUARD = SettingsFile(
    "guard.toml",
    "Settings of this guard. Read when it starts; its command line goes before them.",
    (
        Section(
            "broker",
            "The broker that asks this guard, where it is another one than tdn.toml names: several brokers have a guard each.",
            (
                Key("listen", Address(), "Where the guard listens for the broker's questions.", example="127.0.0.1:7443"),
                Key("management_url", Url(), "The broker's management API.", example="https://rabbit-2.example:15671"),
            ),
        ),
        Section(
            "audit",
            "",
            (
                Key(
                    "rows", Whole(1_000, 100_000_000), "How many rows the audit log keeps; a million take some 310 MB.", 1_000_000
                ),
            ),
        ),
        observe_section.OBSERVE,
    ),
)


@dataclass(frozen=True, slots=True)
class GuardFile:
    listen: tuple[str, int] | None
    management_url: str | None
    audit_rows: int
    observe: ObserveSettings = ObserveSettings()  # noqa: RUF009  frozen


def read(folder: Path) -> GuardFile:
    values = GUARD.read(folder)
    listen = values["broker"]["listen"]
    return GuardFile(
        None if listen is None else split_address(listen),
        values["broker"]["management_url"],
        values["audit"]["rows"],
        observe_section.read(values["observe"]),
    )
