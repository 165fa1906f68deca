#!/usr/bin/env python3
"""Compiles the worked examples of the SDK's headers and of the README: what a reader copies has to be C++.

usage: examples.py INCLUDE_FOLDER README HEADERS -- COMPILER...

An example is a block between "```cpp" and "```", in a header's documentation or on a page. All of them become one
translation unit, each in a namespace of its own: as declarations where it begins like one, else as the body of a function
that sees the names below. HEADERS are those of the SDK, separated by commas.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# The declarations that examples take for granted.
GIVEN = """
extern mh::Mesh mesh;
extern mh::Rules rules;
extern const mh::Batch batch;
extern mh::StepContext& context;
extern mh::Builder& builder;
extern const mh::Architecture& architecture;
extern mh::Model model;
extern const std::unique_ptr<mh::Corpus> corpus;
extern const std::unique_ptr<mh::Optimizer> optimizer;
extern const mh::Axis embed;
extern at::Tensor x, choices, weights;
extern const int64_t experts, count, rows;
extern const uint64_t sample, size, seed;
extern std::vector<double> sums;
struct Config {};
struct Args {};
mh::InstructionLists my_passes(const mh::PipelineSchedule::Args& args);
"""
DECLARATIONS = ("#include", "class ", "struct ", "static ", "template")


# Code in a comment: a line that begins or ends as one of C++ does.
BEGINS = re.compile(r" {2,5}(mh::|static |class |struct |auto |MH_|#include)")
ENDS = re.compile(r" {4}\S.*[(={].*(;|\{)( *//.*)?")


class Uncompiled(SystemExit):
    """An example that this test would not compile."""


def examples(file, text):
    """Yields (line number of the first line, lines) of each block."""
    header = file.suffix == ".hpp"
    block = fence = None
    for number, line in enumerate(text.splitlines(), 1):
        if header:
            comment = re.match(r" */// ?(.*)", line)
            if not comment:
                block = fence = None
                continue
            if fence is None and (BEGINS.match(comment[1]) or ENDS.fullmatch(comment[1])):
                raise Uncompiled(f"{file}:{number}: an example outside of ```cpp is not compiled: {line.strip()}")
            line = comment[1]
        if line.startswith("```"):
            if block:
                yield block[0], block[1]
            fence = line if fence is None else None
            block = (number + 1, []) if fence == "```cpp" else None
        elif block:
            block[1].append(line)


def check_the_check():
    """Examples that it has to find, and lines that are none."""
    here = pathlib.Path("a.hpp")
    code = "mh::Number lr = 1;"
    assert list(examples(here, f"/// A.\n///\n/// ```cpp\n/// {code}\n/// ```\nint x;")) == [(4, [code])]
    assert not list(examples(here, "/// ```lua\n///     mh::x = 1;\n/// ```\n///          a shape [x] = y, or z;\n///   - `f(x)`: a list;"))
    for line in (f"///   {code}", "///     const at::Tensor y = layer.forward(x);  // a row", "  ///     if (x > 0) {"):
        try:
            list(examples(here, line))
        except Uncompiled:
            continue
        raise AssertionError(f"{line} passes")


def main():
    check_the_check()
    split = sys.argv.index("--")
    folder, readme, headers = sys.argv[1:split]
    headers = [pathlib.Path(folder, "megahost", name) for name in headers.split(",")]
    text = "".join(f"#include <megahost/{file.relative_to(pathlib.Path(folder, 'megahost'))}>\n" for file in headers)
    text += "#include <ATen/Functions.h>\n#include <cmath>\n" + GIVEN
    found = 0
    for file in [*headers, pathlib.Path(readme)]:
        for number, lines in examples(file, file.read_text()):
            found += 1
            entry = f"mh_plugin_entry_{found}"  # each plugin of the file defines one
            body = "\n".join(lines)
            declares = body.startswith(DECLARATIONS)
            text += (f"#define mh_plugin_entry {entry}\nnamespace example_{found} {{\n"
                     + ("" if declares else "[[maybe_unused]] void body() {\n")
                     + f'#line {number} "{file}"\n{body}\n'
                     + ("" if declares else "}\n") + "}\n#undef mh_plugin_entry\n")
    with tempfile.TemporaryDirectory() as work:
        unit = pathlib.Path(work, "examples.cpp")
        unit.write_text(text)
        status = subprocess.run([*sys.argv[split + 1:], str(unit)]).returncode
    print(f"{found} examples")
    sys.exit(status or (found < 38 and "fewer examples than there were"))


main()
