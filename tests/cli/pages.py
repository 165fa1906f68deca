#!/usr/bin/env python3
"""Pages of ours in a browser, as people see them: what is on them is drawn, nothing comes from elsewhere.

usage: pages.py [FOLDER]

In FOLDER, or else in a temporary one, lie the pages and their pictures.
"""

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import xml.dom.minidom
import zlib

SOURCE = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
WIDTH, HEIGHT = 1000, 1500
LIGHT, DARK = "1", "0"  # Chromium's preferredColorScheme


def megahost(*words, status=0):
    done = subprocess.run([os.environ["MEGAHOST"], *map(str, words)], capture_output=True, text=True, cwd=SOURCE,
                          env=os.environ | {"XDG_DATA_HOME": "/nonexistent"})
    assert done.returncode == status, done
    return done.stdout


def browser(page, *options, scheme=LIGHT):
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
             f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}",
             f"--blink-settings=preferredColorScheme={scheme}", *options, page.as_uri()],
            capture_output=True, text=True, env=os.environ | {"HOME": profile})
    assert done.returncode == 0, done
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert not said, said
    return done.stdout


def pixels(file):
    """Rows of (red, green, blue) of a PNG of 8 bits a channel."""
    data, at, packed = file.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
            assert depth == 8 and colour in (2, 6), (depth, colour)
        elif kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    step = 3 if colour == 2 else 4
    raw, above, rows = zlib.decompress(packed), bytearray(width * step), []
    for y in range(height):
        begin = y * (width * step + 1)
        kind, row = raw[begin], bytearray(raw[begin + 1:begin + 1 + width * step])
        for i in range(len(row) if kind else 0):
            left, up, corner = (row[i - step], above[i], above[i - step]) if i >= step else (0, above[i], 0)
            if kind == 4:
                guess = left + up - corner
                row[i] = row[i] + min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                                      (abs(guess - corner), 2, corner))[2] & 255
            else:
                row[i] = row[i] + (left, up, (left + up) // 2)[kind - 1] & 255
        above = row
        rows.append([tuple(row[i:i + 3]) for i in range(0, len(row), step)])
    return rows


def colours(page, scheme, scale):
    """How many points of the page's picture have each colour."""
    picture = page.with_suffix(".dark.png" if scheme == DARK else ".png")
    browser(page, f"--screenshot={picture}", f"--force-device-scale-factor={scale}", scheme=scheme)
    count = {}
    for row in pixels(picture):
        for point in row:
            count[point] = count.get(point, 0) + 1
    return count


def check(page, expected, scale=0.5):
    """The page is whole, holds what is expected, and is drawn in both schemes; `scale` 1 for lines, which have their colour
    on whole points alone."""
    text = page.read_text()
    outside = [link for link in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?[^"'\s>]+|https?://[^\s"'<]+""", text)
               if link != "http://www.w3.org/2000/svg"]
    assert not outside, outside
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        xml.dom.minidom.parseString(svg)
    seen = browser(page, "--dump-dom")
    missing = [what for what in expected if what not in seen]
    assert not missing, missing
    for scheme, paper, bars in (LIGHT, (255, 255, 255), (9, 105, 218)), (DARK, (13, 17, 23), (88, 166, 255)):
        count = colours(page, scheme, scale)
        assert max(count, key=count.get) == paper, (scheme, max(count, key=count.get))
        assert count.get(bars, 0) > 500, (scheme, count.get(bars, 0))
        assert len(count) > 50, (scheme, len(count))  # letters


def main(folder):
    page = folder / "pipeline.html"
    megahost("plan", "recipes/llama70b.lua", "--on", "h100", "--html", page, status=1)
    check(page, ["llama2-70b: plan", "memory of a rank", "optimizer", "79.6 GiB", "too much", "time of a step",
                 "pipeline bubble", "pipeline, by microbatch", "stage 1", "weight gradients", "tokens/s", "in proportion",
                 "MFU in %", "Changes that would help"])
    page = folder / "one.html"
    megahost("plan", "recipes/gpt2_124m.lua", "--on", "a100", "--html", page)
    check(page, ["gpt2-124m: plan", "It fits", "stage 0: embed+12+head", "in proportion"])
    tiny = "tests/cli/tiny.toml"
    run = folder / "run"
    megahost("run", tiny, "--run-dir", run, "--set", "train.iters=8")
    page = folder / "run.html"
    megahost("plan", run, "--html", page)
    check(page, ["tiny: plan", "measured in", "peak of tensors in GiB"])
    sweep = folder / "sweep"
    megahost("sweep", tiny, "--set", "optimizer.lr=1e-3,2e-3", "--run-dir", sweep, "--json")
    check(sweep / "sweep.html", ["last loss over optimizer.lr", "<td>done</td>"], scale=1)


assert shutil.which("chromium"), "chromium is missing: ./megahost test cli installs it"
if len(sys.argv) > 1:
    main(pathlib.Path(sys.argv[1]).absolute())
else:
    with tempfile.TemporaryDirectory() as temporary:
        main(pathlib.Path(temporary))
