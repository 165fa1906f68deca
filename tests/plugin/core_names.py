"""The core knows no plugin's name: of the names that plugins register, and of the keys that strategies and schedules declare,
none is a string of the core's sources, nor, where it is no word of English, a word of one, and no source asks whether a name
starts or ends with a part of one. Exceptions are listed with their reason, and must still be there.
usage: core_names.py SOURCE"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])

# file: {words: why}
ORDINARY = {  # names that are words of the core, too
    "data": "a section of recipes, and the core's own key of `parallel`",
    "schedule": "a command",
    "text": "a document's text; a word of messages and formats",
    "none": "values of several options",
    "pairs": "a word of models and of Lua",
    "linear": "values of several options",
    "constant": "values of several options",
    "cosine": "values of several options",
    "null": "JSON's",
}

ENGLISH = {  # names that sentences use as words
    "budget", "byte", "context", "expert", "full", "indexed", "order", "pairs", "pipeline", "retriever", "selective", "sequence", "strategies",
    "tensor", "zero",
}

WORDS = "other programs' words for ours"
ALLOWED = {
    "core/include/megahost/axis.hpp": {"expert": "a logical axis"},
    "core/include/megahost/nn/mixture_config.hpp": {"sequence": "a loss on each sample, which balances experts"},
    "core/include/megahost/nn/decoder_config.hpp": {"kv_rank": "a field of every decoder"},
    "core/decoder/decoder_config.cpp": {"kv_rank": "a field of every decoder"},
    "core/decoder/decoder_hugging_face.cpp": {"kv_rank": "a field of every decoder"},
    "core/decoder/mixture_config.cpp": {"sequence": "a loss on each sample, which balances experts"},
    "core/include/megahost/recipe.hpp": {"cpu byte native": "what a recipe made by hand starts from"},
    "core/schema/sections.hpp": {"adamw byte cpu native": "plugins that are taken where a section names none"},
    "core/session/devices.cpp": {"cpu cuda": "the core's own devices register here"},
    "core/foreign/built_in.cpp": {"native huggingface dcp torch_save torch_dist mp_rank xser": "the core's own checkpoint formats register here"},
    "core/foreign/dcp.hpp": {"dcp": "the folder of a run's steps in that format"},
    "core/checkpoint_commands/export.cpp": {"dcp torch_dist xser": "the other formats that checkpoints are exported to"},
    "core/checkpoint_commands/megatron_state.cpp": {"expert inverse_sqrt min_lr warmup_share wsd": "a run's keys in Megatron-LM's words"},
    "core/formats/torch_file.cpp": {"cpu": "PyTorch's word for where a storage was"},
    "core/plan/hardware.hpp": {"cuda": "the device of a row of hardware.toml that names none"},
    "core/bench/machines.cpp": {"cpu": "`--on this` plans for this machine's processor"},
    "core/bench/machine.cpp": {"cpu": "the row that is measured of this machine's processor"},
    "core/bench/gpu.cpp": {"cpu": "losses on a GPU are compared with this machine's processor"},
    "core/bench/gpu.hpp": {"cuda": "the device that `bench gpu` tries unless it is told another"},
    "core/text/splitter.cpp": {"gpt2": "a model whose pattern it is"},
    "core/bench_commands/bench.cpp": {"cpu": "--calibrate measures this machine's processor"},
    "core/commands/doctor.cpp": {"cpu": "what ranks are compared on unless told"},
    "core/recipe/scale.cpp": {"mock": "a corpus that needs no files takes the place of the recipe's"},
    "core/schema/terms.cpp": {"*": WORDS},
    "core/megatron/arguments.cpp": {"*": WORDS},
    "core/bench/calibrate.cpp": {"*": "recipes that measure this machine"},
    "core/recipe_commands/recipe_from_hf.cpp": {"*": "a recipe that is written for a folder of another program"},
    "core/commands/schedule.cpp": {"virtual_stages": "the member of PipelineSchedule::Args in --json"},
    "core/conformance/layout_trial.cpp": {"sgd adamw": "`megahost check` trains with two optimizers of its own choice"},
    "core/bench/masks.cpp": {"full": "a mask that hides nothing"},
    "core/cli/glossary.cpp": {"cooldown": "a term of the field"},
    "core/cli/tables/checkpoints.cpp": {"huggingface dcp torch_dist xser": "the formats that weights are exported to"},
    "core/checkpoint_commands/inspect.cpp": {"tensor": "the head of a column"},
    "core/checkpoint_commands/saved.cpp": {"native": "the format of a folder with our manifest"},
    "core/mesh/launchers.cpp": {"cpu": "a word of PET_NPROC_PER_NODE"},
    "core/launch/job.cpp": {"s3": "a kind of volume of --volume"},
    "core/sweep/report.cpp": {"min_lr": "fields whose names end so are drawn with a logarithmic axis"},
    "core/mesh/stall.cpp": {"sequence": "a number in a message between ranks"},
}

# file or folder: {words: why}, of words within strings
IN_SENTENCES = {
    "core/decoder/decoder_config.cpp": {"kv_rank": "a field of every decoder"},
    "core/cli/": {"*": "examples in help"},
    "core/schema/terms.cpp": {"*": WORDS},
    "core/megatron/arguments.cpp": {"*": WORDS},
    "core/megatron/arguments_without.cpp": {"*": WORDS},
    "core/foreign/megatron": {"torch_dist": "the name of a format in messages"},
    "core/checkpoint_commands/export.cpp": {"dcp": "an option in a hint"},
    "core/bench/calibrate.cpp": {"gpt llama": "recipes that measure this machine"},
    "core/bench/gpu.cpp": {"adamw mock decay_iters": "recipes that it runs"},
    "core/corpora/prepare.cpp": {"gpt2": "an example in a hint", "indexed": "the corpus that reads what it writes, in a recipe for it"},
    "core/editor/lua_stubs.cpp": {"llama": "an example in what it writes"},
    "core/foreign/xser_write.cpp": {"xser": "the format in a hint"},
    "core/checkpoint_commands/megatron_state.cpp": {"min_lr warmup_share": "keys that Megatron-LM has, too"},
    "core/conformance/files.cpp": {"moe": "an example of an id"},
    "core/conformance/subject.cpp": {"sgd adamw": "`megahost check` trains with two optimizers of its own choice"},
    "core/launch/": {"s3": "buckets that schedulers, and the scripts that they start, open by themselves",
                     "neuron": "Kubernetes's name of Trainium's chips"},
    "core/kernels/update.cpp": {"adam sgd": "rules of the update's operator"},
    "core/mesh/nccl.cpp": {"cpu": "a way out where NCCL is not built in"},
    "core/schema/sections.cpp": {"cpu cuda": "the devices of the core, in the help of `device`"},
    "core/session/devices.cpp": {"cpu cuda": "the core's own devices are here"},
    "core/plugin/open.cpp": {"moe": "an example of an id"},
    "core/step/stages.cpp": {"virtual_stages pipeline_layout": "keys by which the pipeline's mechanisms are set"},
}


def names():
    """The names that plugins register, and the keys that strategies declare."""
    found = {"kv_rank"}  # a field of decoders
    for file in (ROOT / "plugins").rglob("*.[ch]pp"):
        text = re.sub(r"//.*", "", file.read_text())
        found.update(re.findall(r'\.add<[^(]*>\(\s*"([^"]+)"', text))
        if file.name == "keys.hpp":
            found.update(re.findall(r'f\.add\(\s*"([^"]+)"', text))
    for own in ("core/session/devices.cpp", "core/foreign/built_in.cpp"):
        found.update(re.findall(r'\.add<[^(]*>\(\s*"([^"]+)"', (ROOT / own).read_text()))
    return found


TOKEN = re.compile(r"""
    //[^\n]* | /\*.*?\*/ | ^\s*\#\s*include[^\n]* | '(?:[^'\\\n]|\\.)+'
    | R"(?P<end>[^\s()]*)\((?P<raw>.*?)\)(?P=end)"
    | (?P<part>\b(?:(?:starts|ends)_with|rfind|compare)\(\s*(?:\d+,\s*\d+,\s*)?|\bsubstr\([^()]*\)\s*[!=]=\s*)?
      "(?P<plain>(?:[^"\\\n]|\\.)*)" (?P<begins>\)\s*[!=]=\s*0\b)?
    """, re.VERBOSE | re.DOTALL | re.MULTILINE)


def strings_of(text):
    """The strings of a source, outside comments and includes: (string, whether a name is asked for this part of it)."""
    for token in TOKEN.finditer(text):
        string = token["raw"] if token["raw"] is not None else token["plain"]
        if string is not None:
            yield string, token["part"] is not None or token["begins"] is not None


def words_of(text, known):
    """Whole strings of a source, the last part of dotted keys, and the names that a part of one stands for."""
    for string, part in strings_of(text):
        yield string
        key = re.fullmatch(r"(?:parallel|lr_schedule|model)\.([a-z0-9_]+)", string)
        if key:
            yield key.group(1)
        if part and re.fullmatch(r"[\w-]{2,}", string):
            yield from (name for name in known if name.startswith(string) or name.endswith(string))


def in_sentences(text):
    """Words within a source's strings."""
    for string, _ in strings_of(text):
        yield from (word for word in re.findall(r"[\w-]+", string) if word != string)


def dotted(text):
    """Keys of strategies within a source's sentences: a recipe may set them by another strategy's."""
    for string, _ in strings_of(text):
        yield from (key for key in re.findall(r"\bparallel\.([a-z0-9_]+)", string) if string != f"parallel.{key}")


def quoted(text):
    """Quoted words within a source's strings, which are values and no words of a sentence."""
    for string, _ in strings_of(text):
        yield from re.findall(r'\\?"([\w-]+)\\?"', string)


def check_the_check():
    """Sources that it has to see names in, and sources without one."""
    known = {"tensor", "zb-v", "context_method", "moe"}
    for text in ('f("moe")', 'name.starts_with("zb-")', 'name.starts_with("zb")', 's.find("zb-") == 0', 's.rfind("zb", 0) == 0',
                 's.substr(0, 3) == "zb-"', 's.compare(0, 2, "zb") == 0', 'f("model.moe")', 'key.ends_with("_method")', 'f("parallel.tensor")', 'f(R"(moe)")',
                 "f('\"', \"moe\")", 'f("http://a", "moe")', '// f("a\nf("moe")'):
        assert set(words_of(text, known)) & known, f"{text} passes"
    for text in ('f(R"(an example\nof "moe")")', 'f(R"x(of )" moe)x")', 'f("use moe")'):
        assert set(in_sentences(text)) & known, f"{text} passes"
    assert set(dotted('f("lower parallel.tensor")')) & known and not set(dotted('f("parallel.tensor")')) & known
    assert set(quoted('f("set recompute.use = \\"tensor\\"")')) & known
    for text in ('// f("moe")', '#include "moe.hpp"', 'name.starts_with("x-")', 'f("http://a") // "moe"', '/* "moe" */'):
        assert not (set(words_of(text, known)) | set(in_sentences(text))) & known, f"{text} fails"


def reason_of(reasons, word):
    """The reason that allows a word, or None."""
    return next((words for words in reasons if words == "*" or word in words.split()), None)


def main():
    check_the_check()
    known = names()
    assert {"tensor", "zb-v", "full", "context_method", "cpu"} <= known, sorted(known)
    wrong, used = [], set()
    for file in sorted((path for end in ("*.[ch]pp", "*.cu", "*.cuh") for path in (ROOT / "core").rglob(end))):
        path = str(file.relative_to(ROOT))
        if path.startswith(("core/import/", "core/settings/")):  # other programs' arguments as keys of ours
            continue
        place = next((key for key in IN_SENTENCES if path.startswith(key)), path)
        text = file.read_text()
        for key, table, words in ((path, ALLOWED, set(words_of(text, known)) & known - ORDINARY.keys()),
                                  (place, IN_SENTENCES, (set(in_sentences(text)) & known - ORDINARY.keys() - ENGLISH) |
                                   (set(quoted(text)) | set(dotted(text))) & known - ORDINARY.keys())):
            for word in sorted(words):
                reason = reason_of(table.get(key, {}), word)
                if reason is None:
                    wrong.append(f'{path}: "{word}" is a plugin\'s: ask the plugin, or say why in {sys.argv[0]}')
                used.add((id(table), key, "*" if reason == "*" else word))
    for table in (ALLOWED, IN_SENTENCES):
        for key, reasons in table.items():
            for word in " ".join(reasons).split():
                if (id(table), key, word) not in used:
                    wrong.append(f'{key}: "{word}" is allowed, but not there')
    print("\n".join(wrong) or f"{len(known)} names, none in the core but where it says why")
    return 1 if wrong else 0


sys.exit(main())
