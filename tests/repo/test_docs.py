"""What the documents say is true: snippets run, links lead somewhere, README's commands are CI's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cuda/*.md"), *ROOT.glob("packages/*/*.md")])
README = (ROOT / "README.md").read_text()


def blocks(page, language):
    """The fenced blocks of one language, in order; the line after the fence is the first line."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def name(page):
    return str(page.relative_to(ROOT))


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_python_snippets_run(page, tmp_path):
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(blocks(page, "python")))
    run([sys.executable, str(script)], tmp_path)


def core_paths():
    for option in ("--include", "--lib"):
        command = [sys.executable, "-m", "bsparse_core", option]
        yield subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("page", [page for page in PAGES if "int main" in page.read_text()], ids=name)
def test_c_programs_compile_and_run(page, tmp_path):
    include, library = core_paths()
    for text in (block for block in blocks(page, "c") if "int main" in block):
        (tmp_path / "program.c").write_text(text)
        where = [f"-I{include}", library, f"-Wl,-rpath,{Path(library).parent}"]
        run(["cc", "-std=c11", "-Wall", "-Wpedantic", "-Werror", "program.c", "-o", "program", *where], tmp_path)
        run([str(tmp_path / "program")], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_readme_test_command_is_what_ci_runs():
    command = next(line for line in README.splitlines() if line.endswith("nox -s tests"))
    assert command in (ROOT / ".ci/run").read_text().splitlines()


def test_every_nox_session_named_in_a_document_exists():
    sessions = set(re.findall(r"^def (\w+)\(session\):", (ROOT / "noxfile.py").read_text(), flags=re.M))
    for page in PAGES:
        named = {found.split("-")[0] for found in re.findall(r"nox -s ([\w.-]+)", page.read_text())}
        assert named <= sessions, f"{name(page)} names {sorted(named - sessions)}"


def test_c_api_page_is_made_from_the_header():
    run([sys.executable, "docs/make_c_api.py", "--check"], ROOT)
