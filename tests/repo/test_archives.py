"""What the sdists and wheels in dist/ hold; `nox -s sdist` puts them there."""

import tarfile
import zipfile
from pathlib import Path

import pytest

DIST = Path(__file__).resolve().parents[2] / "dist"
NEEDS = {
    "bsparse_core": {"cffi"},
    "bsparse_torch": {"bsparse-core", "torch"},
    "bsparse_hf": {"bsparse-torch", "transformers", "safetensors"},
}


def wheel_names(package):
    with zipfile.ZipFile(next(DIST.glob(f"{package}-*.whl"))) as archive:
        return archive.namelist()


def required(package):
    """Names of the distributions that a wheel always needs."""
    with zipfile.ZipFile(next(DIST.glob(f"{package}-*.whl"))) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    lines = [line.removeprefix("Requires-Dist: ") for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    return {line.replace("=", " ").replace(">", " ").split()[0] for line in lines if "extra ==" not in line}


@pytest.mark.parametrize("package", NEEDS)
def test_wheel_needs_only_the_layer_below(package):
    assert required(package) == NEEDS[package]


@pytest.mark.parametrize("package", NEEDS)
def test_wheel_is_typed_and_licensed(package):
    names = wheel_names(package)
    assert f"{package}/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)


def test_core_wheel_serves_every_python():
    assert "-py3-none-" in next(DIST.glob("bsparse_core-*.whl")).name


def test_core_wheel_holds_the_library_once():
    assert len([name for name in wheel_names("bsparse_core") if "libbsparse" in name]) == 1


@pytest.mark.parametrize("package", ["bsparse_torch", "bsparse_hf"])
def test_upper_wheels_are_pure(package):
    assert next(DIST.glob(f"{package}-*.whl")).name.endswith("-py3-none-any.whl")


def test_core_sdist_holds_the_c_sources_as_files():
    with tarfile.open(next(DIST.glob("bsparse_core-*.tar.gz"))) as archive:
        members = {member.name.split("/", 1)[-1]: member for member in archive.getmembers()}
    for path in ("cuda/CMakeLists.txt", "cuda/include/bsparse/bsparse.h", "cuda/src/api.cc"):
        assert members[path].isfile()
