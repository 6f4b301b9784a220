"""The library exports what the header declares, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "cuda/include/bsparse/bsparse.h"


def library():
    command = [sys.executable, "-m", "bsparse_core", "--lib"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_exported_symbols_equal_the_header():
    declared = set(re.findall(r"BSPARSE_API .*?(bsparse_\w+)\(", HEADER.read_text()))
    listing = subprocess.run(["nm", "-D", "--defined-only", library()], check=True, capture_output=True, text=True)
    assert {line.split()[-1] for line in listing.stdout.splitlines()} == declared


def test_library_needs_no_driver():
    listing = subprocess.run(["readelf", "-d", library()], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(\w+)", listing))
    assert needed <= {"libc", "libm", "libstdc", "libgcc_s", "libpthread", "libdl", "librt", "ld"}, needed


def test_soname_is_the_abi():
    abi = re.search(r"#define BSPARSE_ABI (\d+)", HEADER.read_text())[1]
    listing = subprocess.run(["readelf", "-d", library()], check=True, capture_output=True, text=True).stdout
    assert re.search(r"SONAME.*\[(.*)\]", listing)[1] == f"libbsparse.so.{abi}"
