"""Writes unicode_data.cpp, the tables of Unicode 16.0 that the room reads.
usage: unicode_data.py FILE, with the packages unicodedata2==16.0.0 and regex==2026.11.19, which knows the scripts"""

import sys

import regex
import unicodedata2 as unicode
from regex._regex_core import PROPERTIES

assert unicode.unidata_version == "16.0.0", unicode.unidata_version
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
              "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"]
CONTROL_SPACE, LINE_BREAK = 30, 31  # control characters that are white space, line breaks apart
HANGUL = range(0xAC00, 0xD7A4)
ALL = range(0x110000)


def category(code):
    if chr(code) in "\r\n":
        return LINE_BREAK
    return CONTROL_SPACE if chr(code) in "\t\v\f\x85" else CATEGORIES.index(unicode.category(chr(code)))


def runs(value):
    """(first code point, value) of each run of code points with one value."""
    found = []
    for code in ALL:
        if not found or found[-1][1] != value(code):
            found.append((code, value(code)))
    return found


def decompositions():
    """(code point, kind, its first-level decomposition); kind 0: composed again, 1: canonical only, 2: compatibility."""
    for code in ALL:
        words = unicode.decomposition(chr(code)).split()
        if words and code not in HANGUL:
            compatibility = words[0].startswith("<")
            parts = [int(word, 16) for word in words[compatibility:]]
            composed = unicode.normalize("NFC", "".join(map(chr, parts))) == chr(code)
            yield code, 2 if compatibility else 0 if composed and len(parts) == 2 else 1, parts


def lower_runs():
    """[first, last, step, difference] of code points whose lower case is one code point, `difference` further."""
    found = []
    for code in ALL:
        lower = chr(code).lower() if code < 0x80 else lower_of(code)
        if len(lower) != 1 or ord(lower) == code:
            continue
        difference = ord(lower) - code
        last = found[-1] if found else None
        if last and last[3] == difference and code - last[1] in (1, 2) and last[2] in (0, code - last[1]):
            last[1], last[2] = code, code - last[1]
        else:
            found.append([code, code, 0, difference])
    return [[first, last, step or 1, difference] for first, last, step, difference in found]


def lower_of(code):
    """Simple lower case: unicodedata2 has none, Python's own may be of another version, but letters keep their case pairs."""
    return LOWER.get(code, chr(code).lower())


# Case pairs that Python 3.11 (Unicode 14) lacks: UnicodeData 15 and 16.
LOWER = {0xA7CB: chr(0x264), 0xA7CC: chr(0xA7CD), 0xA7DA: chr(0xA7DB), 0xA7DC: chr(0x19B),
         **{code: chr(code + 0x20) for code in range(0x10D50, 0x10D66)}, 0x1C89: chr(0x1C8A)}


def scripts():
    """The names of each script, and the script of each code point: that of later versions, but for code points that Unicode 16 has
    not."""
    names = {}
    for name, value in PROPERTIES["SCRIPT"][1].items():
        names.setdefault(value, []).append(name)
    text = "".join(chr(code) for code in ALL if unicode.category(chr(code)) not in ("Cn", "Cs"))
    all_names, found = ["UNKNOWN ZZZZ"], [0] * len(ALL)
    for of in sorted(sorted(of, key=len, reverse=True) for of in names.values()):
        codes = [ord(char) for char in regex.findall(rf"\p{{Script={of[0]}}}", text)]
        for code in codes:
            found[code] = len(all_names)
        all_names += [" ".join(of)] if codes else []
    return all_names, found


def table(kind, name, numbers):
    lines, line = [], " "
    for number in numbers:
        word = f" {number}," if isinstance(number, str) or number < 10 else f" {number:#x},"
        if len(line) + len(word) > 120:
            lines.append(line)
            line = " "
        line += word
    return f"const {kind} {name}[] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


categories = [code << 8 | value for code, value in runs(category)]
classes = [code << 8 | value for code, value in runs(lambda code: unicode.combining(chr(code)))]
changes = [number for code, kind, parts in decompositions() for number in (code << 8 | kind << 6 | len(parts), *parts)]
lower = [number & 0xFFFFFFFF for run in lower_runs() for number in run]
names, script_of = scripts()
script_runs = [code << 8 | value for code, value in runs(script_of.__getitem__)]
with open(sys.argv[1], "w") as file:
    file.write("// Written by unicode_data.py from Unicode 16.0; see unicode_data.hpp.\n\n"
               '#include "core/text/unicode_data.hpp"\n\nnamespace mh::text::data {\n\n// clang-format off\n')
    for name, numbers in [("kCategories", categories), ("kCombiningClasses", classes), ("kDecompositions", changes), ("kLower", lower),
                          ("kScripts", script_runs)]:
        file.write(table("uint32_t", name, numbers) + f"const size_t {name}Size = {len(numbers)};\n\n")
    words = table("char* const", "kScriptNames", [f'"{name}"' for name in names])
    file.write(words + f"const size_t kScriptNamesSize = {len(names)};\n\n")
    file.write("// clang-format on\n\n} // namespace mh::text::data\n")
print(f"{len(categories)} runs of categories, {len(classes)} of classes, {len(changes)} numbers of decompositions, {len(lower)} of case, "
      f"{len(script_runs)} runs of {len(names)} scripts")
