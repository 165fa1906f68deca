#!/usr/bin/env python3
"""Corpora and tokenizers in an object store: copied to this machine once, checked at each start, and what goes wrong in a
sentence."""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

from store import CANARIES, KEY, REGION, Store, random_faults, skip_without_moto

skip_without_moto()
MEGAHOST = os.environ["MEGAHOST"]
RECIPE = """return {
  model = { use = "llama", layers = 1, hidden = 32, heads = 4, seq_length = 32 },
  batch = { global = 4, micro = 2 },
  tokenizer = { use = "wordpiece", path = "s3://bucket/tokenizer/vocab.txt" },
  data = { use = "indexed", paths = { "s3://bucket/corpora/words_text_document" }, split = { 9, 1, 0 }, cache = "cache" },
  train = { iters = 2, eval_interval = 2, eval_iters = 1 },
  log = { interval = 1 },
  storage = { use = "s3", stall = 1 },
}
"""
WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"] + [f"word{i}" for i in range(50)]
CORPUS = "/bucket/corpora/words_text_document"


def check(condition, *words):
    if not condition:
        sys.exit(" ".join(map(str, words)))


def megahost(store, *words, status=0):
    ran = subprocess.run([MEGAHOST, *words], env=store.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(ran.returncode == status, words, "ended with", ran.returncode, ran.stdout)
    check(not any(canary in ran.stdout for canary in CANARIES), "a secret was printed:", ran.stdout)
    return ran.stdout


def run(store, name, *words, **more):
    return megahost(store, "run", "r.lua", "--run-dir", name, *words, **more)


def losses(name):
    found = re.findall(r'"lm loss":([^,}]+)', pathlib.Path(name, "metrics.jsonl").read_text())
    check(found, name, "has no losses")
    return found


def fetched(store):
    """Bytes of the corpus's tokens that were asked for, the first block of each opened object left out."""
    ranges = [re.search(r"document\.bin\? bytes=(\d+)-(\d+)", line) for line in store.seen]
    return sum(int(end) - int(begin) + 1 for begin, end in (r.groups() for r in ranges if r) if begin != "0")


def corpus(store, seed, documents):
    dice = random.Random(seed)
    with open("words.jsonl", "w") as lines:
        for _ in range(documents):
            lines.write('{"text": "%s"}\n' % " ".join(dice.choices(WORDS[5:], k=200)))
    megahost(store, "data", "prepare", "words.jsonl", "--output", "words", "--tokenizer", "wordpiece", "--force",
             "--set", "tokenizer.path=s3://bucket/tokenizer/vocab.txt")
    for ending in (".bin", ".idx"):
        ask(store, "PUT", CORPUS + ending, pathlib.Path("words_text_document" + ending).read_bytes())


def ask(store, method, path, body=b""):
    """An object, put or removed by its owner."""
    owner = f"AWS4-HMAC-SHA256 Credential={KEY}/20300101/{REGION}/s3/aws4_request"
    status, text, _ = store.asks(method, path, body, {"authorization": owner})
    check(status in (200, 204), method, path, status, text)
    return text


def copies():
    return sorted(path.name for path in pathlib.Path("cache").iterdir() if not path.name.startswith("."))


def same_as_on_a_disk(store):
    disk = ["--set", 'data.paths=["words_text_document"]', "--set", "tokenizer.path=vocab.txt"]
    run(store, "disk", *disk)
    store.fault = random_faults(0.1, seed=4)
    run(store, "first", "--nproc", "2", "--set", "parallel.data=2")
    store.reset()
    run(store, "again")
    check(losses("again") == losses("disk"), losses("again"), losses("disk"))
    check(fetched(store) == 0 and not store.refused, "what is there was fetched again:", *store.seen)
    check(len(copies()) == 2, copies())


def changed(store):
    before = copies()
    corpus(store, 2, 1000)
    run(store, "changed")
    run(store, "disk2", "--set", 'data.paths=["words_text_document"]')
    check(losses("changed") == losses("disk2") != losses("disk"), losses("changed"))
    check(len(set(copies()) - set(before)) == 1, before, copies())


def killed(store):
    """In the middle of the corpus: the next run fetches it."""
    subprocess.run(["rm", "-rf", "cache"], check=True)
    for number in range(2):
        process = subprocess.Popen([MEGAHOST, "run", "r.lua", "--run-dir", "killed"], env=store.environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def kill(request):
            if "document.bin" in request.path and not request.headers["range"].startswith("bytes=0-"):
                process.send_signal(signal.SIGKILL)
                process.wait()
                return "lost"
            return None

        store.fault = kill
        check(process.wait() == -signal.SIGKILL, "was not killed:", process.returncode)
        check(pathlib.Path("cache/.fetching").is_dir() and len(copies()) == 1, copies())
        store.reset()
    said = run(store, "whole")
    check("fetching s3://bucket/corpora/words_text_document" in said, said)
    check(losses("whole") == losses("changed") and len(copies()) == 2, losses("whole"), copies())
    check(not pathlib.Path("cache/.fetching").exists(), "what was left is still there")


def limits(store):
    """Room is made by what was used longest ago; what finds none is refused."""
    size = sum(len(ask(store, "GET", CORPUS + ending)) for ending in (".bin", ".idx"))
    limit = ["--set", f"data.cache_limit={(size + 2000) / 1e9:.9f}"]
    corpus(store, 3, 1000)
    before = copies()
    run(store, "limited", *limit)
    after = copies()
    check(len(after) == 2 and after != before, before, after)
    said = run(store, "small", "--set", "data.cache_limit=0.0001", "--set", "data.cache=other", status=5)
    check("s3://bucket/corpora/words_text_document takes" in said and "data.cache_limit" in said, said)
    subprocess.run(["rm", "-rf", "cache/.lock"], check=True)
    said = run(store, "unwritable", "--set", "data.cache=/proc/none", status=5)
    check("cannot make the folder /proc/none" in said, said)
    said = run(store, "store", "--set", "data.cache=s3://bucket/cache", status=2)
    check("expected a folder of this machine" in said, said)


def refusals(store):
    nothing = ["--set", 'data.paths=["s3://bucket/none"]', "--set", "data.cache=other"]
    check("there is nothing at s3://bucket/none" in run(store, "none", *nothing, status=5), "nothing")
    missing = ["--set", 'data.paths=["s3://missing/a"]', "--set", "data.cache=other", "--set", "storage.tries=1"]
    said = run(store, "missing", *missing, status=5)
    check("there is no bucket missing" in said, said)
    store.fault = lambda request: (403, "AccessDenied") if "document.idx" in request.path else None
    said = run(store, "denied", "--set", "data.cache=other", status=5)
    check("access is denied to the credentials of the environment" in said, said)
    store.reset()
    ask(store, "DELETE", CORPUS + ".idx")
    said = run(store, "half", "--set", "data.cache=other", status=5)
    check("words_text_document.idx" in said, said)
    ask(store, "PUT", "/bucket/folder/more.txt", b"word1 word2 " * 500)
    said = run(store, "text", "--set", "data.use=text", "--set", 'data.paths=["s3://bucket/folder"]')
    check("text: 1 file" in said, said)


def commands(store):
    """Texts and corpora of a store are read by the commands, too, and whole corpora are written there."""
    tokenizer = ["--tokenizer", "wordpiece", "--set", "tokenizer.path=vocab.txt"]
    corpus(store, 1, 300)  # words.jsonl and CORPUS
    lines = pathlib.Path("words.jsonl").read_bytes().splitlines(keepends=True)
    for name, part in (("a", lines[:100]), ("b", lines[100:])):
        ask(store, "PUT", f"/bucket/texts/{name}.jsonl", b"".join(part))
    places = ["--set", "data.cache=texts", "--set", "storage.stall=1"]
    said = megahost(store, "data", "prepare", "s3://bucket/texts", "--output", "twice", *tokenizer, *places)
    check("300 documents" in said and pathlib.Path("texts").is_dir(), said)
    for ending in (".bin", ".idx"):
        same = [pathlib.Path(f"{name}_text_document{ending}").read_bytes() for name in ("words", "twice")]
        check(same[0] == same[1], "other bytes than from a disk", ending)
    pathlib.Path("list").write_text("s3://bucket/texts/a.jsonl\n")
    by_list = ["--set", "storage.use=s3"]  # the words themselves name no store
    said = megahost(store, "data", "prepare", "@list", "--output", "listed", *tokenizer, *places, *by_list)
    check("100 documents" in said, said)
    ask(store, "PUT", "/bucket/broken.jsonl", b'{"text": "word1\xff"}\n')
    said = megahost(store, "data", "prepare", "s3://bucket/broken.jsonl", "--output", "none", *tokenizer, *places, status=5)
    check("s3://bucket/broken.jsonl:1: byte 16 (0xff) of the line is no UTF-8" in said, said)
    said = megahost(store, "data", "prepare", "words.jsonl", "--output", "s3://bucket/made/words", *tokenizer, status=2)
    check("data merge PREFIX --output s3://bucket/made/words" in said, said)

    place = "s3://bucket/corpora/words_text_document"
    said = megahost(store, "data", "inspect", place, "--svg", "s3://bucket/made/lengths.svg", *places)
    check("documents  300" in said and b"<svg" in ask(store, "GET", "/bucket/made/lengths.svg"), said)
    for words, endings in ((["shuffle", "--seed", "3"], [""]), (["split", "--shares", "2,1,0"], ["_train", "_valid"]),
                           (["dedup-exact"], [""]), (["merge", place], [""])):
        name = words[0]
        local = [word.replace(place, "words_text_document") for word in words]
        megahost(store, "data", name, "words_text_document", *local[1:], "--output", f"here/{name}")
        said = megahost(store, "data", name, place, *words[1:], "--output", f"s3://bucket/made/{name}", *places)
        check(f"s3://bucket/made/{name}" in said, said)
        for file in (f"{name}{ending}{kind}" for ending in endings for kind in (".bin", ".idx")):
            check(ask(store, "GET", f"/bucket/made/{file}") == pathlib.Path("here", file).read_bytes(), file, "differs")
    said = megahost(store, "data", "shuffle", place, "--output", "s3://bucket/made/shuffle", *places, status=5)
    check("s3://bucket/made/shuffle.bin is there already" in said, said)
    megahost(store, "data", "shuffle", place, "--output", "s3://bucket/made/shuffle", "--force", *places)
    said = megahost(store, "data", "shuffle", place, "--output", "more", "--set", "data.seed=1", status=2)
    check("--set data.seed is no option of this command" in said, said)


with Store() as store, tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    pathlib.Path("r.lua").write_text(RECIPE)
    pathlib.Path("vocab.txt").write_text("\n".join(WORDS) + "\n")
    ask(store, "PUT", "/bucket/tokenizer/vocab.txt", pathlib.Path("vocab.txt").read_bytes())
    os.environ["XDG_CACHE_HOME"] = folder + "/home"
    corpus(store, 1, 1000)
    for part in (same_as_on_a_disk, changed, killed, limits, refusals, commands):
        part(store)
        print(part.__name__, flush=True)
