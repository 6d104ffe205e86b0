"""The two programs of Erlang that a private broker needs beside RabbitMQ: epmd, which finds brokers, and the compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tdn.errors import BrokerUnavailable

#: The compiler takes a fifth of a second for a module of ours; a machine under load gets this long.
_COMPILE_SECONDS = 30.0


def find_epmd() -> Path:
    on_path = shutil.which("epmd")
    if on_path is not None:
        return Path(on_path)
    # Archives of Erlang put only `erl` on the PATH; epmd is then beside the runtime.
    root = _root()
    found = sorted(root.glob("erts-*/bin/epmd"))
    if not found:
        raise BrokerUnavailable(f"Erlang in {root} has no epmd")
    return found[-1]


def compile_module(source: Path, folder: Path) -> str | None:
    """Compile a module into a folder. Gives what is wrong when that cannot be done; there is then no module in the folder.

    The compiler is that of the Erlang on the PATH, which is the one that RabbitMQ starts with: code of a later version does not load.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compiled = folder / f"{source.stem}.beam"
    # An earlier one may be of another version, ours or Erlang's.
    compiled.unlink(missing_ok=True)
    try:
        done = subprocess.run(  # noqa: S603  # the compiler that was found, no shell
            [str(_find_erlc()), "-o", str(folder), str(source)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except BrokerUnavailable as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"erlc does not run: {error}"
    if done.returncode or not compiled.exists():
        compiled.unlink(missing_ok=True)
        return f"erlc does not compile {source.name}: {(done.stdout + done.stderr).strip()[:300]}"
    return None


def _find_erlc() -> Path:
    on_path = shutil.which("erlc")
    if on_path is not None:
        return Path(on_path)
    beside = _root() / "bin" / "erlc"
    if not beside.exists():
        raise BrokerUnavailable("Erlang's compiler, erlc, is not installed")
    return beside


def _root() -> Path:
    try:
        root = subprocess.run(
            ["erl", "-noshell", "-eval", "io:put_chars(code:root_dir()), halt()."],  # noqa: S607  # from the PATH: where Erlang is, is what is asked
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BrokerUnavailable("Erlang, which RabbitMQ runs on, is not found on the PATH") from error
    return Path(root.strip())
