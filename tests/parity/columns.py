"""Parquet and Arrow files as pyarrow writes them: `data prepare` makes the corpus that JSON lines of the same rows give. The
reader is built here against the same wheel that `./megahost arrow` fetches."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = [str(ROOT / "core/install" / name) for name in ("columns.cpp", "columns_main.cpp")]
MEGAHOST = os.environ.get("MEGAHOST", "megahost")
failures = 0


def expect(good, what):
    global failures
    if not good:
        print(f"{what}: not so")
        failures += 1


def build(folder):
    """megahost-columns, in `folder`."""
    wheel = pathlib.Path(pyarrow.__file__).parent
    libraries = sorted(str(path) for name in ("libarrow", "libparquet") for path in wheel.glob(f"{name}.so.*"))
    program = folder / "megahost-columns"
    subprocess.run(["c++", "-std=c++20", "-O1", "-I", str(ROOT), *SOURCES, "-isystem", str(wheel / "include"), *libraries,
                    f"-Wl,-rpath,{wheel}", "-o", str(program)], check=True)
    return program


def run(folder, reader, *words):
    return subprocess.run([MEGAHOST, "data", "prepare", *map(str, words)], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "MEGAHOST_COLUMNS": str(reader)})


def prepare(folder, reader, *words):
    """The bytes of the corpora that a preparation makes."""
    result = run(folder, reader, *words, "--output", "made", "--tokenizer", "byte", "--force")
    expect(result.returncode == 0, f"prepare {words}: {result.stderr}")
    made = {path.name: path.read_bytes() for path in folder.glob("made_*")}
    for name in made:
        (folder / name).unlink()
    return made


def rows():
    """Texts with everything that JSON escapes, empty ones, and conversations."""
    kinds = ['say "a\\b"\n\t\x01\x7f', "", "é, 水, 𝄞 and \u2028", "plain " * 50]
    return [{"id": i, "text": kinds[i % 4] + str(i) if i % 4 != 1 else "", "score": i / 3, "kind": "ab"[i % 2],
             "messages": [{"role": "user", "content": f"{i}+{i}?"}, {"role": "assistant", "content": str(2 * i)}]}
            for i in range(3000)]


def write(folder):
    """The same rows in each form; the last is what Hugging Face's save_to_disk leaves."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    table = pyarrow.Table.from_pylist(rows())
    table = table.set_column(3, "kind", table["kind"].dictionary_encode())
    large = table.set_column(1, "text", table["text"].cast(pyarrow.large_string()))
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=700, compression="zstd")
    pyarrow.parquet.write_table(large, folder / "large.parquet", compression="snappy")
    with pyarrow.ipc.new_file(folder / "rows.arrow", table.schema) as file:
        file.write_table(table, 500)
    saved = folder / "saved"
    saved.mkdir()
    with pyarrow.OSFile(str(saved / "data-00000-of-00001.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as file:
        file.write_table(table, 500)
    for name in ("state.json", "dataset_info.json", "README.md"):
        (saved / name).write_text("{}")


def patched(path, before, after):
    """A file in which 32-bit numbers were replaced."""
    old, new = (struct.pack(f"<{len(numbers)}i", *numbers) for numbers in (before, after))
    content = path.read_bytes()
    assert content.count(old) == 1, (path, content.count(old))
    path.write_bytes(content.replace(old, new))


def malformed(folder, reader):
    """The claims of a damaged file about itself are refused, and never read."""
    def write_arrow(name, table):
        with pyarrow.OSFile(str(folder / name), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as file:
            file.write_table(table)
        return folder / name

    texts = pyarrow.table({"text": ["aaaa", "bbbb", "cccc"]})
    patched(write_arrow("offsets.arrow", texts), (0, 4, 8, 12), (0, 4, 1 << 28, 12))
    refused(folder, reader, ["offsets.arrow"], "offsets.arrow cannot be read: ")
    patched(write_arrow("backwards.arrow", texts), (0, 4, 8, 12), (0, 8, 4, 12))
    refused(folder, reader, ["backwards.arrow"], "backwards.arrow cannot be read: ")
    words = pyarrow.table({"text": pyarrow.array(["a", "b", "a", "b"]).dictionary_encode()})
    patched(write_arrow("words.arrow", words), (0, 1, 0, 1), (0, 1, 77, 1))
    refused(folder, reader, ["words.arrow"], "words.arrow cannot be read: ")
    lists = pyarrow.table({"text": [["a", "b", "c"], ["d", "e"]]})
    patched(write_arrow("lists.arrow", lists), (0, 3, 5), (0, 3000, 5))
    refused(folder, reader, ["lists.arrow"], "lists.arrow cannot be read: ")
    twice = pyarrow.Table.from_arrays([texts["text"], texts["text"]], names=["text", "text"])
    write_arrow("twice.arrow", twice)
    refused(folder, reader, ["twice.arrow"], "it has 2 columns text")
    latin = pyarrow.table({"text": pyarrow.array([b"a", b"caf\xe9"]).view(pyarrow.string())})
    pyarrow.parquet.write_table(latin, folder / "latin.parquet")
    refused(folder, reader, ["latin.parquet"], "latin.parquet:2: byte 13 (0xe9) of the line is no UTF-8")
    replaced = run(folder, reader, "latin.parquet", "--on-error", "replace", "--output", "made", "--tokenizer", "byte", "--force")
    expect("replaced in 1 document" in replaced.stdout and "2 documents, 7 tokens" in replaced.stdout, f"replaced: {replaced}")


def refused(folder, reader, words, *sentences, status=5):
    result = run(folder, reader, *words, "--output", "none", "--tokenizer", "byte")
    expect(result.returncode == status, f"{words} ended with {result.returncode}")
    for sentence in sentences:
        expect(sentence in result.stderr, f'"{sentence}" in: {result.stderr}')
    expect(not list(folder.glob("none*")), f"{words} leaves nothing")


def main():
    with tempfile.TemporaryDirectory(prefix="megahost-columns-") as name:
        folder = pathlib.Path(name)
        reader = build(folder)
        write(folder)
        texts = prepare(folder, reader, "rows.jsonl")
        for form in ("rows.parquet", "large.parquet", "rows.arrow", "saved"):
            expect(prepare(folder, reader, form) == texts, f"{form} gives the texts of rows.jsonl")
        chats = prepare(folder, reader, "rows.jsonl", "--template", "chatml")
        expect(len(chats) == 4, "conversations give two corpora")
        expect(prepare(folder, reader, "rows.parquet", "--template", "chatml") == chats, "conversations in columns")
        keys = ("--json-key", "text", "--json-key", "kind")
        expect(prepare(folder, reader, "rows.arrow", *keys) == prepare(folder, reader, "rows.jsonl", *keys), "two columns")

        refused(folder, reader, ["rows.parquet", "--json-key", "body"],
                "rows.parquet cannot be read: it has no column body, but id, text, score, kind, messages",
                "help: name columns that it has by --json-key")
        refused(folder, reader, ["rows.parquet", "--json-key", "id"], "rows.parquet:1: `id`")
        content = (folder / "rows.parquet").read_bytes()
        (folder / "cut.parquet").write_bytes(content[:-100])
        refused(folder, reader, ["cut.parquet"], "cut.parquet cannot be read: ")
        skipped = run(folder, reader, "cut.parquet", "rows.parquet", "--on-error", "skip", "--output", "made", "--tokenizer", "byte")
        expect("3,000 documents" in skipped.stdout and "skipped the rest of 1 file" in skipped.stdout, f"a damaged file is skipped: {skipped}")
        malformed(folder, reader)
        refused(folder, folder / "nothing", ["rows.arrow"], "rows.arrow holds columns, and", "./megahost arrow fetches libarrow",
                status=1)  # the file is not at fault
    sys.exit(1 if failures else 0)


main()
