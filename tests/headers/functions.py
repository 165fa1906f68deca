"""Autograd Functions save values other than tensors as a struct with a type (megahost/saved.hpp): no source keeps values
under names in `saved_data`, and none that has a Function casts pointers.
usage: functions.py SOURCE"""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
HOLDER = ROOT / "core/include/megahost/saved.hpp"
FOLDERS = ["core", "plugins", "templates", "examples", "docs"]


def faults(text):
    """The faults of a source, a sentence each."""
    text = re.sub(r"//.*", "", text)
    if re.search(r"\bsaved_data\b", text):
        yield "writes or reads `saved_data`: say mh::save and mh::get_saved"
    if re.search(r"to_string\([^;]*unsafeGetTensorImpl", text):
        yield "writes a tensor's address as text: StepContext::cached takes the tensor"
    if "autograd::Function<" in text and "reinterpret_cast<" in text:
        yield "casts a pointer where it has a Function: what that needs is an argument, or a field of its Saved"


files = [path for folder in FOLDERS for end in ("*.[ch]pp", "*.md") for path in (ROOT / folder).rglob(end)]
texts = {path: path.read_text() for path in files if path != HOLDER and "reference" not in path.parts}
functions = sum(text.count("autograd::Function<") for text in texts.values())
assert functions >= 20, functions  # they are where this test looks
found = [f"{path.relative_to(ROOT)} {fault}" for path, text in texts.items() for fault in faults(text)]
assert not found, "\n".join(found)

# The test can fail.
assert "saved_data" in HOLDER.read_text()
assert len(list(faults('ctx->saved_data["p"] = p;'))) == 1
assert len(list(faults("key = std::to_string(reinterpret_cast<uintptr_t>(x.unsafeGetTensorImpl()));"))) == 1
assert len(list(faults("struct A : autograd::Function<A> {}; reinterpret_cast<int64_t>(&x)"))) == 1
print(f"{functions} Functions")
