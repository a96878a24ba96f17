"""Build configuration of espnet-fastformer."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
STARTUP_HOOK = "espnet_fastformer.pth"
# Where the project is published; no release is made elsewhere, see release.yml.
REPOSITORY = "https://github.com/OWNER/espnet-fastformer"

PLOT = ["matplotlib"]
ONNX = ["onnx", "onnxruntime", "onnxscript"]
DOCS = ["furo", "myst-parser", "sphinx"]
TRAIN = ["espnet[asr,train]>=202611"]
RECIPE = [*TRAIN, *PLOT, "gdown>=6.4", "hibari-tts", "soundfile"]
TEST = [
    *RECIPE,
    *ONNX,
    *DOCS,
    "build",
    "check-jsonschema",
    "hypothesis",
    "loralib",
    "mypy",
    "pytest",
    "pytest-xdist",
    "ruff",
    "setuptools>=77",
    "sherpa-onnx",
    "twine",
    "zizmor",
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
    keywords=[
        "aft",
        "attention free transformer",
        "espnet",
        "fastformer",
        "linear attention",
        "pytorch",
        "speech recognition",
    ],
    project_urls={
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}#readme",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
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
        "docs": DOCS,
        "recipe": RECIPE,
        "test": TEST,
    },
    packages=find_packages(include=["espnet_fastformer", "espnet_fastformer.*"]),
    package_data={"espnet_fastformer": ["py.typed"]},
    # With an explicit root, an editable install is a plain path instead of an import
    # finder, which alone would cost every interpreter more than this package does.
    package_dir={"": "."},
    cmdclass={"build_py": BuildWithStartupHook},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Multimedia :: Sound/Audio :: Speech",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
