"""One version for all packages, exact pins upward."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["bsparse-core", "bsparse-torch", "bsparse-hf"]
HEADER = (ROOT / "cuda/include/bsparse/bsparse.h").read_text()
NUMBER = int(re.search(r"#define BSPARSE_VERSION (\d+)", HEADER)[1])
VERSION = f"{NUMBER // 10000}.{NUMBER // 100 % 100}.{NUMBER % 100}"


def pyproject(package):
    return (ROOT / "packages" / package / "pyproject.toml").read_text()


def test_cmake_reads_the_version_from_the_header():
    text = (ROOT / "cuda/CMakeLists.txt").read_text()
    assert "file(STRINGS include/bsparse/bsparse.h" in text
    assert VERSION not in text


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_the_version_of_the_header(package):
    assert re.search(r'^version = "(.*)"', pyproject(package), flags=re.M)[1] == VERSION


@pytest.mark.parametrize(("package", "below"), [(PACKAGES[1], PACKAGES[0]), (PACKAGES[2], PACKAGES[1])])
def test_package_pins_the_layer_below_exactly(package, below):
    assert f'"{below}=={VERSION}"' in pyproject(package)


def test_changelog_begins_with_the_version():
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1] == VERSION


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_states_another_version(package):
    text = (ROOT / "packages" / package / "src" / package.replace("-", "_") / "__init__.py").read_text()
    assert set(re.findall(r'__version__ = "(.*)"', text)) <= {VERSION}


@pytest.mark.parametrize("package", PACKAGES)
def test_package_carries_the_licence(package):
    assert (ROOT / "packages" / package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
