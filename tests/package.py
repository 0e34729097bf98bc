"""Build the package, install it where there is nothing else, and use it as a stranger would: `make package`.

    python tests/package.py dist

The sdist is built from the repository and the wheel from the sdist. The environment is made anew every time, with what
a plain `pip install` of the wheel brings, at the versions of constraints.txt. Then the extra `viz` comes to it, since
templates and style sheets are only read where there are pictures.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
BLOCK = "meq.MutualEquilibrium"
"""What the README's block on the module in your own network speaks of."""
NOT_THERE = ("matplotlib", "gradio", "fastapi", "transformers", "ray", "pandas", "sklearn", "onnx", "pytest")


def beside_code() -> list[str]:
    """Files under src that are no Python, by their place in the package: templates, style sheets, py.typed."""
    found = [path for path in (SOURCE / "meq").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path.relative_to(SOURCE).as_posix() for path in found if path.suffix not in (".py", ".pyc"))


def module_block(page: str) -> str:
    """The first Python block of the README that builds the module."""
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    found = next((block for block in blocks if BLOCK in block), None)
    if found is None:
        raise ValueError(f"README.md has no Python block with {BLOCK}")
    return found


def build(into: Path) -> Path:
    """Build both into a folder; the wheel comes from the sdist, so that the sdist is known to suffice."""
    for old in into.glob("meq-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", into, ROOT)
    (_,) = into.glob("meq-*.tar.gz")
    (wheel,) = into.glob("meq-*.whl")
    return wheel.resolve()


def run(*words: str | Path, folder: Path = ROOT, show: bool = False) -> str:
    """Run a command outside of the repository's own sources; its output is shown where it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    began = time.monotonic()
    done = subprocess.run([*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True)
    shown = " ".join(Path(word).name if isinstance(word, Path) else word for word in words)
    print(f"{time.monotonic() - began:6.1f} s  {shown.splitlines()[0][:100]}", flush=True)
    if show:
        print(done.stdout)
    if done.returncode:
        raise SystemExit(f"{shown}\nended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def expect(true: bool, words: str) -> None:
    if not true:
        raise SystemExit(f"not as it should be: {words}")


def try_out(wheel: Path, folder: Path) -> None:
    """Install the wheel alone, then with its pictures, and use it."""
    environment, here = folder / "environment", folder / "here"
    here.mkdir()
    venv.create(environment, with_pip=True)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    python, meq = programs / "python", programs / "meq"
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    run(*pip, wheel, folder=here)
    run(python, "-m", "pip", "check", folder=here)
    listed = f"import importlib.util as u; print([n for n in {NOT_THERE} if u.find_spec(n)])"
    expect(run(python, "-c", listed, folder=here).strip() == "[]", "the environment has what only extras bring")

    absent = f"from pathlib import Path; import meq; print([n for n in {beside_code()} if not " + (
        "(Path(meq.__file__).parents[1] / n).is_file()])"
    )
    expect(run(python, "-c", absent, folder=here).strip() == "[]", "files beside the code did not travel")
    expect("Usage" in run(meq, "--help", folder=here), "`meq --help` shows how it is used")
    version = wheel.name.split("-")[1]
    expect(run(meq, "--version", folder=here).strip() == f"meq {version}", f"`meq --version` says {version}")

    run(python, "-c", module_block((ROOT / "README.md").read_text(encoding="utf-8")), folder=here)
    expect((here / "my-model" / "model.safetensors").is_file(), "the README's block saves a model")
    told = run(meq, "demo", "--quick", "--out", "demo", folder=here, show=True)
    expect("pip install 'meq[viz]'" in told, "without matplotlib the demonstration says what to install")
    expect("spectral radius" in told, "the demonstration ends in a diagnosis")

    run(*pip, f"{wheel}[viz]", folder=here)
    told = run(meq, "demo", "--quick", "--out", "demo", folder=here)
    expect("pip install" not in told, "nothing is missing any more")
    report = here / "demo-report.html"
    expect("<style>" in report.read_text(encoding="utf-8"), "templates and style sheets make a report")
    run(meq, "study", "verify", "demo", folder=here)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    target.mkdir(exist_ok=True)
    built = build(target)
    with tempfile.TemporaryDirectory(prefix="meq-package-") as scratch:
        try_out(built, Path(scratch).resolve())
    print(f"{built.name} works in an environment that has nothing else")
