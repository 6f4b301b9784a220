#!/usr/bin/env bash
# Builds and installs the packages without network, into build/offline, and runs a command with them:
#
#     tests/offline.sh WHEELS python3 -m pytest tests/gpu
#
# Needs CMake, nvcc, ninja or make, and a python3 with torch. WHEELS is a folder with wheels of what that python3 lacks;
# for the build cffi, pycparser, scikit-build-core, hatchling, packaging, pathspec, pluggy and trove-classifiers. A
# second call compiles only what has changed. BSPARSE_CUDA=OFF in the environment leaves the CUDA backend out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheels=$(cd "$1" && pwd)
shift
cd "$root"
site=$root/build/offline
install() { python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$@"; }
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
install "$wheels"/*.whl
install --no-build-isolation -C build-dir=build/offline-core -C cmake.define.BSPARSE_CUDA="${BSPARSE_CUDA:-ON}" \
    packages/bsparse-core
install --no-build-isolation packages/bsparse-torch packages/bsparse-hf
exec "$@"
