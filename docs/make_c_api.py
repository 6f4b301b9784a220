"""Writes docs/c-api.md from cuda/include/bsparse/bsparse.h; with --check, says whether it is up to date.

The header is the manual: its comments are the text, its declarations the code. Nothing is added here
but headings, so a fact about the C API is changed in the header and nowhere else.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
HEADER = DOCS.parent / "cuda" / "include" / "bsparse" / "bsparse.h"
PAGE = DOCS / "c-api.md"

SECTION = re.compile(r"^/\* (\w[\w ]*?) -{10,} \*/$")
TOP = """# C API

`docs/make_c_api.py` makes this page from [`bsparse.h`](../cuda/include/bsparse/bsparse.h): change the header, not the
page. [concepts.md](concepts.md) explains the words, [`cuda/README.md`](../cuda/README.md) how to build and link.
"""


def prose(comment):
    """The text of a C comment, without its frame; indented lines stay as code."""
    lines = [re.sub(r"^\s*(/\*|\*/|\*) ?", "", line).removesuffix("*/").rstrip() for line in comment]
    return "\n".join(f"    {line}" if line.startswith("  ") else line for line in lines).strip("\n")


def names(code):
    """What a run of declarations declares: its functions, else its types, else its constants."""
    text = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    functions = re.findall(r"\b(bsparse_\w+)\(", text)
    types = re.findall(r"typedef [^{;]*?(\w+);", text) + re.findall(r"typedef struct (\w+) \{", text)
    constants = re.findall(r"#define (\w+)", text) or re.findall(r"^\s*(BSPARSE_\w+) =", text, flags=re.M)
    return functions or types or constants


def chunks(lines):
    """Groups of lines, parted by blank lines and by comments that begin a line."""
    group = []
    for line in lines:
        in_comment = any(part.startswith("/*") for part in group) and not any("*/" in part for part in group)
        starts_comment = line.startswith("/*") and any(not part.startswith(("/*", " *")) for part in group)
        if group and not in_comment and (not line or starts_comment):
            yield group
            group = []
        if line:
            group.append(line)
    if group:
        yield group


def render(header):
    """The whole page for a header's text."""
    intro, rest = header.split("*/", 1)
    region = rest.split("/* cffi: begin */")[1].split("/* cffi: end */")[0]
    about = prose(intro.splitlines()).split(": ", 1)[1]
    page = [TOP.strip(), about[0].upper() + about[1:], "## constants and types"]
    for group in chunks(region.strip().splitlines()):
        section = SECTION.match(group[0])
        if section:
            page.append(f"## {section[1]}")
            continue
        comment_lines = 0
        if group[0].startswith("/*"):
            comment_lines = next(i for i, line in enumerate(group, 1) if "*/" in line)
        code = re.sub(r"^ {12}(?= {12})", "", "\n".join(group[comment_lines:]), flags=re.M).replace("BSPARSE_API ", "")
        page.append("### " + ", ".join(f"`{name}`" for name in names(code)))
        if comment_lines:
            page.append(prose(group[:comment_lines]))
        page.append(f"```c\n{code}\n```")
    return "\n\n".join(page) + "\n"


def main():
    text = render(HEADER.read_text())
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/c-api.md does not match bsparse.h: run python docs/make_c_api.py")


if __name__ == "__main__":
    main()
