#!/usr/bin/env python3
"""Links between the pages of the tree lead to files that are there, and to headings that are there; the README is short.

usage: links.py SOURCE
"""

import pathlib
import re
import sys


def anchors(file):
    """The names that headings of a page have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main():
    source = pathlib.Path(sys.argv[1])
    pages = [*source.glob("*.md"), *source.glob("docs/**/*.md"), *source.glob("core/*.md")]
    wrong = []
    links = 0
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            links += 1
            name, _, heading = target.partition("#")
            file = page.parent / name if name else page
            if not file.exists() or (heading and heading not in anchors(file)):
                wrong.append(f"{page.relative_to(source)}: {target}")
    print(f"{links} links of {len(pages)} pages", *wrong, sep="\n")
    lines = len((source / "README.md").read_text().splitlines())
    if lines > 200:
        wrong.append(f"README.md has {lines} lines; what is more than 200 belongs into a guide")
        print(wrong[-1])
    sys.exit(bool(wrong) or not links)


main()
