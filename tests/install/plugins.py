#!/usr/bin/env python3
"""`megahost plugins install`, `rebuild` and `remove`: a plugin's sources from a folder and from an archive, built files, and
everything that can go wrong: a sentence, and nothing left half done."""

import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile

MEGAHOST = os.environ["MEGAHOST"]
FIXTURES = pathlib.Path(os.environ["MEGAHOST_FIXTURES"])
work = pathlib.Path(tempfile.mkdtemp())
data = work / "data/megahost"
plugins, records = data / "plugins-1", data / "installed"
environment = os.environ | {"XDG_DATA_HOME": str(work / "data"), "NO_COLOR": "1", "TERM": "dumb"}
environment.pop("MEGAHOST_LAUNCHER", None)


def megahost(*words, status=0, expect=(), environment=environment, before=None):
    done = subprocess.run([MEGAHOST, *words], cwd=work, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, preexec_fn=before)
    said = done.stdout
    assert done.returncode == status, f"{words}: status {done.returncode}\n{said}"
    for text in [expect] if isinstance(expect, str) else expect:
        assert text in said, f"{words}: {text!r} is missing in\n{said}"
    return said


def refused(*words, expect, status=2, helps=1, **more):
    """An error sentence with help (a disk's says it all), and nothing has changed."""
    before = state()
    said = megahost(*words, status=status, expect=expect, **more)
    starts = [line.split(": ")[0] for line in said.splitlines()]
    assert starts.count("error") == 1 and starts.count("help") == helps, said
    assert state() == before, f"{words}: {before} became {state()}\n{said}"


def state():
    """Each file of the user's folder, but locks and logs."""
    return {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*")
            if path.is_file() and path.suffix != ".log" and path.name != ".lock"}


def edit(file, old, new):
    text = file.read_text()
    assert old in text, (file, old)
    file.write_text(text.replace(old, new))


def installed(name):
    found = json.loads(megahost("plugins", "--json"))
    return next((one for one in found["installed"] if one["name"] == name), None)


def sources():
    megahost("plugins", "new", "tiger", "--kind", "optimizer")
    tiger = work / "tiger"
    (tiger / "runs").mkdir()
    (tiger / "runs/weights").write_text("left out")
    (tiger / "build/meson-private").mkdir(parents=True)

    # Faults of the sources are reported before anything is built, or with the end of the log.
    refused("plugins", "install", "nowhere", expect="there is no nowhere")
    (work / "empty").mkdir()
    refused("plugins", "install", "empty", expect="empty holds no plugin: there is no meson.build at its top")
    (work / "plain").mkdir()
    (work / "plain/meson.build").write_text("project('plain')\n")
    refused("plugins", "install", "plain", expect="the project plain installs no plugin")
    (work / "wrong").mkdir()
    (work / "wrong/meson.build").write_text("project('wrong', 'cpp')\nshared_module('x', 'x.cpp', install: true)\n")
    (work / "wrong/x.cpp").write_text("int x = no_such_name;\n")
    refused("plugins", "install", "wrong", status=1,
            expect=["the plugin does not build: ninja ended with status 1", "no_such_name", "wrong.log"])
    (work / "wrong/x.cpp").write_text("clas Tiger;\n" + "".join(f"int x{i} = no_such_name;\n" for i in range(9)))
    refused("plugins", "install", "wrong", status=1, expect=["does not name a type", "  ...\n", "int x8 = no_such_name"])
    (work / "wrong/loop").symlink_to(".")
    refused("plugins", "install", "wrong", expect="wrong/loop is a link to a folder")
    (work / "huge").mkdir()
    (work / "huge/meson.build").write_text("project('huge')\n")
    with open(work / "huge/weights", "wb") as file:
        file.truncate((64 << 20) + 1)
    refused("plugins", "install", "huge", expect="huge holds more than 64 MiB")
    (work / "bad.tar.gz").write_text("not an archive")
    refused("plugins", "install", "bad.tar.gz", expect="bad.tar.gz cannot be unpacked: Unrecognized archive format")

    # Tools that this machine lacks.
    tools = work / "tools"
    tools.mkdir()
    for tool in "meson", "ninja", "pkg-config":
        (tools / tool).symlink_to(shutil.which(tool))
    refused("plugins", "install", "tiger", environment=environment | {"PATH": str(tools)},
            expect="this machine lacks a C++ compiler")
    refused("plugins", "install", "tiger", environment=environment | {"PATH": str(work), "CXX": "c++"},
            expect="this machine lacks meson, ninja, pkg-config")
    homeless = {key: value for key, value in environment.items() if key not in ("HOME", "XDG_DATA_HOME")}
    refused("plugins", "install", "tiger", environment=homeless, expect="neither HOME nor XDG_DATA_HOME is set")

    # From a folder, with the tests of `plugins check`; found by its name from then on.
    said = megahost("plugins", "install", "tiger", expect=["building tiger", "checking optimizers-tiger.so", " tests passed, ",
                                                        "installed tiger 0.1.0: optimizer tiger"])
    assert str(plugins / "optimizers-tiger.so") in said
    record = installed("tiger")
    assert record["from"] == str(tiger) and record["current"], record
    kept = records / record["sources"]
    assert sorted(os.listdir(kept)) == ["README.md", "expect.hpp", "meson.build", "test.cpp", "tiger.cpp", "tiger.lua"]
    edit(tiger / "tiger.lua", 'plugins = { "build/optimizers-tiger.so" },', "")
    megahost("run", "tiger/tiger.lua", "--set", "train.iters=1", "--run-dir", "run", expect="org.example.tiger 0.1.0")
    megahost("plugins", "list", expect=f"tiger  0.1.0, from {tiger}\n")

    megahost("plugins", "remove", "optimizers-tiger", expect=f"removed tiger, which was installed from {tiger}")
    assert not kept.exists() and not any(plugins.iterdir())


def tiger(library, version):
    """A project that "builds" a library of the fixtures: what becomes of it needs no compiler."""
    folder = work / "tiger"
    folder.mkdir(exist_ok=True)
    content = library.read_bytes()
    assert b"1.2.3" in content
    (folder / "tiger.so").write_bytes(content.replace(b"1.2.3", version.encode()))
    (folder / "meson.build").write_text("""project('tiger')
custom_target('tiger', input: 'tiger.so', output: 'built.so', command: ['cp', '@INPUT@', '@OUTPUT@'],
  install: true, install_dir: 'lib')
""")
    return folder


def upgrades():
    megahost("plugins", "install", tiger(FIXTURES / "good.so", "1.2.3"), "--no-check",
             expect="installed tiger 1.2.3: lr_schedule fixed\n")
    first = records / installed("tiger")["sources"]

    # A new version, from an archive, takes its place; what is left of a command that was killed is removed.
    with tarfile.open(work / "tiger.tar.xz", "w:xz") as archive:
        archive.add(tiger(FIXTURES / "good.so", "1.3.0"), "tiger-1.3.0")
    (records / ".new-000000").mkdir()
    (records / "tiger-000000").mkdir()
    (plugins / ".new-000000").write_text("half a library")
    megahost("plugins", "install", "tiger.tar.xz", "--no-check",
             expect=["unpacking tiger.tar.xz", "installed tiger 1.3.0: lr_schedule fixed, in place of 1.2.3"])
    record = installed("tiger")
    assert not first.exists() and record["from"] == str(work / "tiger.tar.xz") and not record["checked"]
    assert [name for name in os.listdir(records) if "." not in name] == [record["sources"]]
    assert os.listdir(plugins) == ["built.so"]

    # After an upgrade of megahost it is refused with what to do; what was there stays if it does not build any more.
    built = plugins / "built.so"
    tag = record["abi_tag"].encode()
    assert tag in built.read_bytes()
    built.write_bytes(built.read_bytes().replace(tag, tag[:-12] + b"0123456789ab"))
    refused("plugins", "--plugin", built, expect=[
        "built.so was built with other headers of plugin SDK 1",
        "help: megahost plugins rebuild tiger builds it again, from the sources that were kept"])
    megahost("plugins", expect=["skipped:", "; megahost plugins rebuild builds it for this megahost"])
    source = records / record["sources"] / "meson.build"
    edit(source, "'cp'", "'false'")
    refused("plugins", "rebuild", status=1, expect="the plugin does not build: ninja ended with status 1")
    edit(source, "'false'", "'cp'")
    megahost("plugins", "rebuild", expect=["building tiger", "built again tiger 1.3.0: lr_schedule fixed"])
    assert installed("tiger") == record and built.read_bytes().count(tag) == source.with_name("tiger.so").read_bytes().count(tag)
    megahost("plugins", "show", "fixed", expect="org.megahost.test 1.3.0")
    megahost("plugins", "rebuild", expect="tiger is built for this megahost")
    megahost("plugins", "remove", "org.megahost.test", expect="removed tiger")


def built_files():
    good, other = FIXTURES / "good.so", FIXTURES / "other_id.so"
    megahost("plugins", "install", good, expect=[" tests passed, ", "installed good 1.2.3: lr_schedule fixed"])
    assert (plugins / "good.so").read_bytes() == good.read_bytes()
    megahost("plugins", "install", good, "--no-check", expect="installed good 1.2.3: lr_schedule fixed\n")
    refused("plugins", "rebuild", "good", status=2, expect="good was installed as a built file")
    refused("plugins", "rebuild", "goot", expect=["no plugin is installed as goot", "did you mean good?"])

    # A launcher is asked by the start of its file's name, which it gets.
    shutil.copy(FIXTURES / "launches.so", work / "starter.so")
    megahost("plugins", "install", "starter.so", "--no-check", expect="installed starter 1.0.0: launcher launches")
    assert (plugins / "launchers-starter.so").is_file() and not (plugins / "starter.so").exists()
    megahost("plugins", "remove", "starter", expect="removed starter")
    assert not (plugins / "launchers-starter.so").exists()

    # Names that are taken, by another plugin or by a file that another program put there.
    shutil.copy(other, work / "good.so")
    refused("plugins", "install", "good.so", "--no-check", expect=["the name good is taken by org.megahost.test", str(good)])
    refused("plugins", "install", other, "--no-check", expect='the lr_schedule "fixed" is offered by org.megahost.test already')
    (plugins / "shadow.so").write_bytes(b"of another program")
    refused("plugins", "install", FIXTURES / "shadow.so", "--no-check", expect="shadow.so is there already, and not of this plugin")
    (plugins / "shadow.so").unlink()

    # Plugins that the loader or its tests refuse.
    refused("plugins", "install", FIXTURES / "other_torch.so", expect="was built for LibTorch 2.9.0 (cu128)")
    refused("plugins", "install", FIXTURES / "no_entry.so", expect="is a shared library but no megahost plugin")
    (work / "text.so").write_text("hello")
    refused("plugins", "install", "text.so", expect="text.so is no shared library")
    megahost("plugins", "remove", "good.so", expect=f"removed good, which was installed from {good}")
    assert not (plugins / "good.so").exists() and installed("good") is None
    (work / "odd.so").write_bytes(good.read_bytes().replace(b"1.2.3", b"1.2.x"))
    refused("plugins", "install", "odd.so", status=1,
            expect=["descriptor-consistent", "its version is `1.2.x`", "of megahost plugins check failed, and nothing was installed"])

    # A disk that is full, or refuses: nothing changes.
    def little_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    refused("plugins", "install", good, "--no-check", status=5, expect="File too large", helps=0, before=little_disk)
    environment_ = environment | {"XDG_DATA_HOME": "/proc/nowhere"}
    refused("plugins", "install", good, "--no-check", status=5, expect="/proc/nowhere", helps=0, environment=environment_)

    # Another process at work.
    with open(records / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused("plugins", "install", good, expect="another megahost is installing or removing plugins in")

    # A record that cannot be read stops what would overwrite it, and no run.
    (records / "good.json").write_text("{")
    refused("plugins", "install", good, status=5, expect=["good.json", "remove this record"])
    megahost("plugins", expect=["warning: ", "good.json", "optimizers-adamw.so"])
    for sources, files, why in (("../../tiger", ["lib.so"], "`sources` is no plain name"), ("tiger", [], "`files` is empty")):
        (records / "good.json").write_text(json.dumps(installed_record(sources, files)))
        refused("plugins", "remove", "good", status=5, expect=why)
    (records / "good.json").unlink()


def installed_record(sources, files):
    return {"name": "good", "from": "", "sources": sources, "abi_tag": "", "checked": True, "sets": [],
            "files": [{"name": file, "id": "optimizer good", "version": "1"} for file in files]}


def removed():
    assert not any(plugins.iterdir())
    assert {path.suffix for path in records.iterdir() if path.name != ".lock"} == {".log"}, list(records.iterdir())
    refused("plugins", "remove", "tiger", expect=["no plugin is installed as tiger", "nothing was put"])


sources()
upgrades()
built_files()
removed()
shutil.rmtree(work)
print("installed, rebuilt, removed and refused as they should be")
