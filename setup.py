"""Build configuration of espnet-fastformer."""

import gzip
import io
import os
import re
import tarfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
STARTUP_HOOK = "espnet_fastformer.pth"

# Equal sources make equal archives, whenever and by whomever they are built. The date
# is any that zip files can hold.
os.environ.setdefault("SOURCE_DATE_EPOCH", "1767225600")
BUILD_TIME = int(os.environ["SOURCE_DATE_EPOCH"])

PLOT = ["matplotlib"]
ONNX = ["onnx", "onnxruntime", "onnxscript"]
TRAIN = ["espnet[asr,train]>=202611"]
RECIPE = [*TRAIN, *PLOT, "gdown>=6.4", "hibari-tts", "soundfile"]
TEST = [
    *RECIPE,
    *ONNX,
    "build",
    "hypothesis",
    "loralib",
    "pytest",
    "pytest-xdist",
    "ruff",
    "setuptools>=77",
    "sherpa-onnx",
]


class BuildWithStartupHook(build_py):
    """Puts the `.pth` file beside the package, at the top of site-packages."""

    def run(self) -> None:
        super().run()
        # An editable wheel leaves out what lies in build_lib, but holds whatever is
        # at the place where the package would be installed.
        target = (
            self.get_finalized_command("install").install_lib
            if self.editable_mode
            else self.build_lib
        )
        self.copy_file(str(ROOT / STARTUP_HOOK), target)


class ReproducibleWheel(bdist_wheel):
    """Leaves the permissions of the builder's files out."""

    def write_wheelfile(self, *args, **kwargs) -> None:
        # The last step before all files are put into the archive.
        super().write_wheelfile(*args, **kwargs)
        for path in Path(self.bdist_dir).rglob("*"):
            if path.is_file():
                path.chmod(0o644)


class ReproducibleSdist(sdist):
    """Leaves times, owners and permissions of the builder's files out."""

    def make_archive(self, *args, **kwargs) -> str:
        path = super().make_archive(*args, **kwargs)
        packed = io.BytesIO()
        with (
            tarfile.open(path) as source,
            gzip.GzipFile("", "wb", fileobj=packed, mtime=BUILD_TIME) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as target,
        ):
            for member in sorted(source.getmembers(), key=lambda m: m.name):
                member.mtime = BUILD_TIME
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.pax_headers = {}
                is_executable = member.isdir() or member.mode & 0o100
                member.mode = 0o755 if is_executable else 0o644
                target.addfile(member, source.extractfile(member))
        Path(path).write_bytes(packed.getvalue())
        return path


def read_version() -> str:
    source = (ROOT / "espnet_fastformer" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE).group(1)


setup(
    name="espnet-fastformer",
    version=read_version(),
    description="Linear-time Fastformer and Attention Free Transformer encoders "
    "for ESPnet",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.12",
    # What the command line needs beside these (soundfile, soxr, tqdm, ...) is what
    # ESPnet needs.
    install_requires=["espnet>=202611", "torch", "typeguard"],
    entry_points={
        "console_scripts": ["espnet-fastformer = espnet_fastformer.bin.main:main"]
    },
    extras_require={
        "onnx": ONNX,
        "plot": PLOT,
        "train": TRAIN,
        "recipe": RECIPE,
        "test": TEST,
    },
    packages=find_packages(include=["espnet_fastformer", "espnet_fastformer.*"]),
    # With an explicit root, an editable install is a plain path instead of an import
    # finder, which alone would cost every interpreter more than this package does.
    package_dir={"": "."},
    cmdclass={
        "bdist_wheel": ReproducibleWheel,
        "build_py": BuildWithStartupHook,
        "sdist": ReproducibleSdist,
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Multimedia :: Sound/Audio :: Speech",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    zip_safe=False,
)
