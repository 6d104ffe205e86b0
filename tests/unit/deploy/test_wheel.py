"""The wheel that the image installs: it holds the schemas and the broker's templates, and runs without the repository."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # The words of the Containerfile.
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."]
    assert " ".join(words[2:7]) in (ROOT / "deploy" / "container" / "Containerfile").read_text("utf-8")
    done = subprocess.run([*words, "--quiet", "--no-index", "--disable-pip-version-check"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_what_runs_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for source, packed in (("schemas", "tdn/_schemas"), ("broker_config", "tdn/_broker_config")):
        here = {path.name for path in (ROOT / source).iterdir() if path.is_file()}
        assert {name.rpartition("/")[2] for name in names if name.startswith(f"{packed}/")} == here
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tdn", "entity_client", "spark"}
    assert not [name for name in names if name.endswith((".pem", ".jws", ".pyc")) or "/tests/" in name]


def test_the_wheel_runs_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """In an environment without our folder: the packages it needs are lent to it, `tdn` itself is not."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    lent = [entry for entry in sys.path if entry.endswith("site-packages")]
    # A path file, read after our own site-packages: what both have is taken from the wheel.
    (site / "lent.pth").write_text("\n".join(lent) + "\n")
    code = (
        "from pathlib import Path\n"
        "import entity_client, spark, tdn\n"
        "from tdn.local.broker import template_folder\n"
        "from tdn.protocol.schemas import contract_folder\n"
        f"site = Path({str(site)!r})\n"
        "assert all(Path(module.__file__).is_relative_to(site) for module in (tdn, entity_client, spark)), tdn.__file__\n"
        "assert template_folder().is_relative_to(site) and (template_folder() / 'rabbitmq.conf').is_file()\n"
        "assert (contract_folder() / 'asyncapi.json').is_file() and str(contract_folder()).startswith(str(site))\n"
    )
    # -I: neither this folder nor PYTHONPATH.
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([python, "-I", python.parent / "tdn", "--help"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.startswith("usage: tdn "), done.stderr
    home = tmp_path / "home"
    done = subprocess.run([python, "-I", python.parent / "tdn", "--home", home, "ca", "issue", "n1", "--node"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (home / "nodes" / "n1" / "key.pem").is_file()
