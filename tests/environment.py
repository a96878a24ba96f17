import os
import subprocess
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Environment:
    """A virtual environment with everything that this one has, but our package.

    It links to the installed packages one by one: this environment may hold
    espnet_fastformer as well, which must not stand in for the one under test.
    """

    def __init__(self, path: Path):
        venv.create(path, with_pip=False, symlinks=True)
        self.path = path
        self.python = path / "bin" / "python"
        (self.site_packages,) = path.glob("lib/python*/site-packages")
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if "espnet_fastformer" not in entry.name:
                (self.site_packages / entry.name).symlink_to(entry)

    def start(self, *args, **variables: str) -> subprocess.Popen:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "ESPNET_FASTFORMER"))
        }
        return subprocess.Popen(
            [self.python, *args],
            cwd=self.path,
            env={**inherited, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args, **variables: str) -> subprocess.CompletedProcess:
        process = self.start(*args, **variables)
        out, err = process.communicate()
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def output(self, *args, **variables: str) -> str:
        done = self.run(*args, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pip(self, *args) -> None:
        self.output("-m", "pip", "--disable-pip-version-check", *args)

    def install(self, *args) -> None:
        self.pip("install", "--no-deps", "--no-build-isolation", *args)

    def our_files(self) -> set[str]:
        return {p.name for p in self.site_packages.glob("*espnet_fastformer*")}
