#include "core/formats/pickle.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>

#include <string>

namespace pickle_tests {

using mh::Pickle;
using mh::PickleKind;
using mh::PickleValue;
using mh::PickleWriter;
using mh::test::contains;
using mh::test::refusal;
using namespace std::string_literals;

namespace {

/// Why a pickle is refused; "" if it is read.
std::string why(const std::string& bytes, const mh::PickleLimits& limits = {}) {
  return refusal([&] { const Pickle pickle(bytes, "a.pkl", limits); });
}

std::string two(const std::string& operations) {
  return "\x80\x02" + operations + ".";
}

std::string four(const std::string& operations) {
  return "\x80\x04" + operations + ".";
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

std::string short_text(const std::string& text) {
  return "\x8c"s + static_cast<char>(text.size()) + text;
}

} // namespace

TEST_CASE("values of all kinds are read as pickle.dumps writes them") {
  // {"a": 1, "b": [True, None, 0.5], "c": (-1, 70000, 2**40, -2**63), "d": b"x"}, protocol 4
  const Pickle pickle(
      "\x80\x04\x95I\0\0\0\0\0\0\0}\x94(\x8c\x01"
      "a\x94K\x01\x8c\x01"
      "b\x94]\x94(\x88NG?\xe0\0\0\0\0\0\0e\x8c\x01"
      "c\x94(J\xff\xff\xff\xffJp\x11\x01\0\x8a\x06\0\0\0\0\0\x01\x8a\x08\0\0\0\0\0\0\0\x80t\x94"
      "\x8c\x01"
      "d\x94"
      "C\x01x\x94u."s,
      "a.pkl"
  );
  const PickleValue& root = pickle.root();
  REQUIRE(root.is(PickleKind::dict));
  CHECK(root.items.size() == 8);
  CHECK(root.get("a")->integer == 1);
  const PickleValue& b = *root.get("b");
  REQUIRE(b.items.size() == 3);
  CHECK(b.items[0]->is(PickleKind::boolean));
  CHECK(b.items[0]->integer == 1);
  CHECK(b.items[1]->is(PickleKind::none));
  CHECK(b.items[2]->real == 0.5);
  CHECK(
      pickle.integers(*root.get("c"), "c") ==
      std::vector<int64_t>{-1, 70000, int64_t{1} << 40, INT64_MIN}
  );
  CHECK(root.get("d")->is(PickleKind::bytes));
  CHECK(root.get("d")->text == "x");
  CHECK(root.get("e") == nullptr);
}

TEST_CASE("calls of allowed names become values, and attributes are theirs") {
  PickleWriter out;
  out.global("argparse", "Namespace").mark().tuple().make().mark();
  out.text("hidden_size").integer(64).dict().build();
  const Pickle pickle(out.finish(), "a.pkl");
  CHECK(pickle.root().is_object("argparse.Namespace"));
  CHECK(pickle.root().get("hidden_size")->integer == 64);
  // collections.OrderedDict([("a", 1)]) with an attribute, as a module's state_dict has
  PickleWriter ordered;
  ordered.global("collections", "OrderedDict").mark().mark().mark();
  ordered.text("a").integer(1).tuple().list().tuple().reduce();
  ordered.mark().text("_metadata").none().dict().build();
  const Pickle dict(ordered.finish(), "a.pkl");
  CHECK(dict.root().is(PickleKind::dict));
  CHECK(dict.root().get("a")->integer == 1);
  CHECK(dict.root().state->get("_metadata") != nullptr);
}

TEST_CASE("members of enums, as Python 3.11.2 writes them") {
  const std::string name = "torch.distributed.checkpoint.metadata";
  PickleWriter out;
  out.global("builtins", "getattr").mark();
  out.global(name, "_MEM_FORMAT_ENCODING").text("TORCH_CONTIGUOUS_FORMAT").tuple().reduce();
  const Pickle pickle(out.finish(), "a.pkl");
  CHECK(pickle.root().is_object(name + "._MEM_FORMAT_ENCODING"));
  CHECK(pickle.root().items[0]->text == "TORCH_CONTIGUOUS_FORMAT");
}

TEST_CASE("evil pickles do nothing but give a sentence") {
  const std::string call = short_text("touch /tmp/megahost-evil") + "\x85R";
  CHECK(
      why(two("cos\nsystem\n" + call)) ==
      "a.pkl: byte 2: it names \"os.system\", which is not among the names that are read"
  );
  CHECK(contains(why(two("cposix\nsystem\n" + call)), "it names \"posix.system\""));
  CHECK(contains(why(two("cbuiltins\neval\n" + call)), "it names \"builtins.eval\""));
  for (const char* module : {"builtins", "__builtin__"}) {
    const std::string getattr = "c"s + module + "\ngetattr\n";
    CHECK(contains(why(two(getattr + call)), "it takes an attribute of what is no class"));
    const std::string chained = getattr + getattr + "ctorch\nSize\n" + short_text("x") + "\x86R" +
                                short_text("y") + "\x86R";
    CHECK(contains(why(two(chained)), "it takes an attribute of what is no class"));
  }
  CHECK(contains(
      why(four(short_text("subprocess") + short_text("Popen") + "\x93" + call)),
      "it names \"subprocess.Popen\""
  ));
  // A name within an allowed module, and a dotted one that begins as an allowed one does.
  CHECK(contains(
      why(four(short_text("torch") + short_text("serialization.os.system") + "\x93" + call)),
      "it names \"torch.serialization.os.system\""
  ));
  // Operations of protocol 0 that import and call: INST, OBJ; codes of copyreg's registry: EXT1.
  CHECK(contains(why(two("(ios\nsystem\n")), "byte 3: the operation 0x69"));
  CHECK(contains(why(two("(" + short_text("x") + "o")), "the operation 0x6f"));
  CHECK(contains(why(two("\x82\x01")), "the operation 0x82"));
  CHECK(contains(why(two("P1\n")), "the operation 0x50")); // an id that a program looks up
  CHECK(contains(why(two("\x97")), "the operation 0x97")); // a buffer from elsewhere
  // A list that holds itself.
  CHECK(contains(why(two("]q\0h\0a"s)), "a value that holds itself"));
  // 2^40 values in 400 bytes, each list holding the one before twice.
  std::string laughs = "(]q\0"s;
  for (char i = 1; i < 40; ++i) {
    laughs += "]q"s + i + "h" + static_cast<char>(i - 1) + "ah" + static_cast<char>(i - 1) + "a";
  }
  CHECK(contains(why(two(laughs + "t")), "a value of more than 16777216 others"));
  // Values within each other.
  CHECK(contains(why(two("N" + repeated("\x85", 100))), "more than 64 values within each other"));
  CHECK(why(two("N" + repeated("\x85", 50))).empty());
  CHECK(!why(two("N" + repeated("\x85", 3'000'000))).empty()); // without a stack of calls
  // Lengths of what is not there.
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\x7f";
  CHECK(contains(why(four("\x8d" + huge)), "it asks for 9223372036854775807 bytes, but only 1"));
  CHECK(contains(why(four("\x8e" + huge)), "it asks for"));
  CHECK(contains(why(four("\x95" + huge + "N")), "a frame of 9223372036854775807 bytes"));
  CHECK(contains(why(two("\x8b\xff\xff\xff\x7f")), "an integer of 2147483647 bytes"));
  CHECK(why(two("r\xff\xff\xff\xff")) != ""); // a memo of four thousand million
  CHECK(why(two("Nr\xff\xff\xff\xff")).empty());
  CHECK(contains(why(two(repeated("N", 2000)), {.values = 1000}), "more than 1000 values"));
  CHECK(contains(why(two("N"), {.bytes = 3}), "4 bytes, of which 3 are read at most"));
  CHECK(std::fopen("/tmp/megahost-evil", "r") == nullptr);
}

TEST_CASE("pickles that break their own rules are refused") {
  CHECK(contains(why(""), "byte 0: it does not begin as a pickle of protocol 2 to 5"));
  CHECK(contains(why("I1\n."), "it does not begin as a pickle"));
  CHECK(contains(why("\x80\x01N."), "protocol 1, expected 2 to 5"));
  CHECK(contains(why(two("")), "it takes a value where there is none"));
  CHECK(contains(why(two("NN")), "values or bytes are left over"));
  CHECK(contains(why(two("N") + "N"), "values or bytes are left over"));
  CHECK(contains(why(two("N(0")), "it takes a value where there is none")); // below a mark
  CHECK(contains(why(two("Nt")), "it takes values from a mark, and there is none"));
  CHECK(contains(why(two("(Nd")), "a key of a dict without its value"));
  CHECK(contains(why(two("NNa")), "it adds items to what is no list or dict"));
  CHECK(contains(why(two("]NNs")), "it adds items to what is no list or dict"));
  CHECK(contains(why(two("h\x05")), "it recalls the value 5, which it has not kept"));
  CHECK(contains(why(two("NNb")), "it gives attributes to what is no object"));
  CHECK(contains(why(two("N)R")), "it calls what is no name"));
  CHECK(contains(why(two("X\x01\0\0\0\xff"s)), "a text that is no UTF-8"));
  CHECK(contains(why(two("\x8a\x09\0\0\0\0\0\0\0\0\1"s)), "an integer of 9 bytes"));
}

TEST_CASE("what is written is read again, at every length or not at all") {
  PickleWriter out;
  out.mark().text("a").integer(7).text("b").integer(-(int64_t{1} << 40)).text("c").boolean(true);
  out.text("d").none().text("e").integers({1, 2}).text("f").mark().integer(3).list().dict();
  const std::string bytes = out.finish();
  const Pickle pickle(bytes, "a.pkl");
  CHECK(pickle.root().get("a")->integer == 7);
  CHECK(pickle.root().get("b")->integer == -(int64_t{1} << 40));
  CHECK(pickle.root().get("c")->is(PickleKind::boolean));
  CHECK(pickle.root().get("d")->is(PickleKind::none));
  CHECK(pickle.integers(*pickle.root().get("e"), "e") == std::vector<int64_t>{1, 2});
  CHECK(pickle.integers(*pickle.root().get("f"), "f") == std::vector<int64_t>{3});
  CHECK(
      refusal([&] { (void)pickle.integers(*pickle.root().get("c"), "`c`"); }) ==
      "a.pkl: byte " + std::to_string(pickle.root().get("c")->at) +
          ": `c` is no short tuple of integers"
  );
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!why(bytes.substr(0, length)).empty());
  }
}

} // namespace pickle_tests
