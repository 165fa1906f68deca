#!/usr/bin/env python3
"""Compiles the worked examples of headers and of the README: what a reader copies has to be C++.

usage: examples.py SOURCE sdk HEADERS -- COMPILER...     the SDK's headers, separated by commas, and the README
       examples.py SOURCE core -- COMPILER...            the other headers of core/ and plugins/

An example is a block between "```cpp" and "```", in a header's documentation or on a page. All of them become one
translation unit, each in a namespace of its own: as declarations where it begins like one, else as the body of a function
that sees the names below.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

INCLUDES = """
#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cmath>
#include <fstream>
struct Config {};
struct Args {};
"""
# The declarations that examples take for granted.
GIVEN = {"sdk": """
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
mh::InstructionLists my_passes(const mh::PipelineSchedule::Args& args);
""", "core": """
extern mh::Mesh mesh;
extern const mh::MeshShape shape;
extern const mh::Builder::Args args;
extern const std::unique_ptr<mh::Architecture> architecture;
extern const mh::Registry::Entry& entry;
extern const mh::Table fields;
extern const nlohmann::json state;
extern const mh::Value given;
extern const mh::Recipe recipe;
extern mh::Host host;
extern mh::Output& output;
extern mh::Storage& storage;
extern mh::StepFolder& folder;
extern mh::CheckpointFormat& format;
extern std::unique_ptr<mh::CheckpointReader> saved;
extern const mh::CheckpointContents& contents;
extern mh::Meeting meeting;
extern const c10::intrusive_ptr<c10d::Store> store;
extern const mh::Ranks ranks;
extern const mh::BackgroundSaves::Write write;
extern const mh::StepFolder::Warn warn;
extern const mh::StepFolder::Verify verify;
extern const std::vector<mh::Slice> slices;
extern mh::Parameter& parameter;
extern mh::Optimizer& optimizer;
extern const mh::Update update;
extern std::vector<mh::UpdateItem> items;
extern const at::Tensor zeros;
extern const std::string first, second, bytes, manifest;
extern std::string_view name;
extern std::ofstream file;
extern const mh::ReadAt read;
extern const uint64_t size;
extern const int64_t rank, step;
extern const double now;
"""}
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


# Fewer would mean that this test no longer finds them.
AT_LEAST = {"sdk": 38, "core": 27}


def files(root, which, listed):
    """The files whose examples are compiled, and the headers' names in an #include."""
    if which == "sdk":
        headers = {root / "core/include/megahost" / name: f"megahost/{name}" for name in listed.split(",")}
        return [*headers, root / "README.md"], headers.values()
    having = [file for folder in ("core", "plugins") for file in sorted((root / folder).rglob("*.hpp"))
              if "include" not in file.parts and list(examples(file, file.read_text()))]
    return having, [str(file.relative_to(root)) for file in having]


def main():
    check_the_check()
    split = sys.argv.index("--")
    root, which = pathlib.Path(sys.argv[1]), sys.argv[2]
    having, headers = files(root, which, *sys.argv[3:split] or [None])
    text = "".join(f"#include <{name}>\n" for name in headers) + INCLUDES
    found = 0
    for file in having:
        for number, lines in examples(file, file.read_text()):
            found += 1
            entry = f"mh_plugin_entry_{found}"  # each plugin of the file defines one
            body = "\n".join(lines)
            declares = body.startswith(DECLARATIONS)
            text += (f"#define mh_plugin_entry {entry}\nnamespace example_{found} {{{GIVEN[which]}"
                     + ("" if declares else "[[maybe_unused]] void body() {\n")
                     + f'#line {number} "{file}"\n{body}\n'
                     + ("" if declares else "}\n") + "}\n#undef mh_plugin_entry\n")
    with tempfile.TemporaryDirectory() as work:
        unit = pathlib.Path(work, "examples.cpp")
        unit.write_text(text)
        status = subprocess.run([*sys.argv[split + 1:], str(unit)]).returncode
    print(f"{found} examples")
    sys.exit(status or (found < AT_LEAST[which] and "fewer examples than there were"))


main()
