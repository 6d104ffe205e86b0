"""Runs a unit's command under the unit's own confinement, where no systemd runs: `python as_systemd.py UNIT COMMAND…`.

What it takes from the unit and has the kernel enforce: SystemCallFilter, SystemCallErrorNumber, RestrictAddressFamilies, MemoryDenyWriteExecute,
CapabilityBoundingSet (empty), NoNewPrivileges, UMask. What it leaves to a real systemd: users, mounts (ProtectSystem, PrivateTmp and the like), cgroups. The system calls of
`@sets` are asked of systemd-analyze.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_SET_MDWE = 38, 24, 65
_SHM_EXEC = 0o100000
#: What systemd allows with every list: without these not even the command could be started.
_IMPLIED = {"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn", "time", "nanosleep", "clock_nanosleep", "restart_syscall"}

_libc = ctypes.CDLL(None, use_errno=True)


class _Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]  # ctypes reads it so


class Filter:
    """A seccomp filter: what is done with calls that no rule names, and rules."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def rule(self, action: int, call: str, *compare: tuple[int, int, int, int]) -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:  # Not a call of this machine's.
            return
        array = (_Compare * max(1, len(compare)))(*(_Compare(*one) for one in compare))
        if code := self._library.seccomp_rule_add_array(self._context, ctypes.c_uint32(action), number, len(compare), array):
            raise OSError(-code, f"no rule for {call}: {os.strerror(-code)}")

    def load(self) -> None:
        if code := self._library.seccomp_load(self._context):
            raise OSError(-code, f"the filter was not taken: {os.strerror(-code)}")


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def call_sets() -> dict[str, set[str]]:
    """systemd's sets of system calls, each as calls alone."""
    said = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True).stdout
    sets: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in said.splitlines():
        if line.startswith("@"):
            current = sets.setdefault(line.strip(), set())
        elif line.startswith("# "):
            break  # Calls that are in no set.
        elif line.strip() and not line.strip().startswith("#"):
            current.add(line.strip())

    def flat(name: str) -> set[str]:
        return set().union(*(flat(one) if one.startswith("@") else {one} for one in sets[name]))

    return {name: flat(name) for name in sets}


def allowed_calls(filters: list[str]) -> set[str]:
    sets = call_sets()
    found: set[str] = set()
    for line in filters:
        calls = set().union(*(sets.get(word, {word}) for word in line.removeprefix("~").split()))
        found = found - calls if line.startswith("~") else found | calls
    return found | _IMPLIED


def confine(unit: Path) -> None:
    said = directives(unit)
    calls = allowed_calls(said["SystemCallFilter"])
    refused = _ERRNO | getattr(errno, said["SystemCallErrorNumber"][0])
    os.umask(int(said["UMask"][0], 8))
    if said["CapabilityBoundingSet"] == [""] and os.geteuid() == 0:
        for number in range(64):
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    if said["NoNewPrivileges"] == ["yes"] and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("PR_SET_NO_NEW_PRIVS was refused")
    first = Filter(_ALLOW)
    families = {int(getattr(socket, word)) for word in said["RestrictAddressFamilies"][0].split()}
    for family in set(range(64)) - families:
        first.rule(_ERRNO | errno.EAFNOSUPPORT, "socket", (0, _EQUAL, family, 0))
    if said.get("MemoryDenyWriteExecute") == ["yes"]:
        both = mmap.PROT_WRITE | mmap.PROT_EXEC
        first.rule(_ERRNO | errno.EPERM, "mmap", (2, _MASKED_EQUAL, both, both))
        for call in ("mprotect", "pkey_mprotect"):
            first.rule(_ERRNO | errno.EPERM, call, (2, _MASKED_EQUAL, mmap.PROT_EXEC, mmap.PROT_EXEC))
        first.rule(_ERRNO | errno.EPERM, "shmat", (2, _MASKED_EQUAL, _SHM_EXEC, _SHM_EXEC))
        # Newer systemd asks the kernel as well; older kernels do not know it.
        _libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0)
    first.load()
    second = Filter(refused)
    for call in sorted(calls):
        second.rule(_ALLOW, call)
    second.load()


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
