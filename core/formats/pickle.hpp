#pragma once
/// Python's pickles, protocols 2 to 5, as values: nothing of them is run. No LibTorch.
///
/// ```cpp
/// const mh::Pickle pickle(bytes, "model.pt: data.pkl");
/// const mh::PickleValue* step = pickle.root().get("step");
/// if (step != nullptr && step->kind == mh::PickleKind::integer) { }
/// ```
///
/// A pickle is a program that makes objects by calling functions by their names. This reader calls
/// none: a name of a short list becomes a value of kind `global`, a call of it one of kind
/// `object` with its arguments, and any other name refuses the file.
///
/// Source:  https://docs.python.org/3/library/pickle.html, Lib/pickletools.py

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

enum class PickleKind : uint8_t {
  none,
  boolean,   ///< in `integer`
  integer,   ///< 64 bits; longer ones are refused
  real,      ///< in `real`
  text,      ///< UTF-8, in `text`
  bytes,     ///< in `text`
  list,      ///< in `items`, as are the members of a set
  tuple,     ///< in `items`
  dict,      ///< `items` are key, value, key, value, ...; collections.OrderedDict, too
  global,    ///< a class or function, "module.name" in `text`
  object,    ///< object that a global would have made: its name in `text`, its arguments in `items`
  persistent ///< object that is stored outside of the pickle: `items` has its id
};

struct PickleValue {
  PickleKind kind = PickleKind::none;
  int64_t integer = 0;
  double real = 0;
  std::string_view text{};
  std::vector<const PickleValue*> items{};
  const PickleValue* state = nullptr; ///< an object's attributes, if it has some
  uint64_t at = 0;                    ///< byte of the pickle where it begins

  /// The value of a text key of a dict, or of an object's attribute; null if there is none.
  [[nodiscard]] const PickleValue* get(std::string_view key) const;

  [[nodiscard]] bool is(PickleKind other) const { return kind == other; }

  /// Whether it is an object of this class: "torch.Size".
  [[nodiscard]] bool is_object(std::string_view name) const {
    return kind == PickleKind::object && text == name;
  }
};

struct PickleLimits {
  size_t bytes = size_t{1} << 30;
  size_t values = 16 << 20; ///< values of all kinds; those in several places count in each
  size_t depth = 64;        ///< values within each other
};

class Pickle {
public:
  /// `file` names it in messages.
  ///
  /// Throws:  mh::Error (exit code 5) "FILE: byte N: ...": another protocol; a name that is not
  ///          allowed; an operation that no pickle of tensors has; a value that holds itself; a
  ///          limit passed; anything that is cut short or left over
  Pickle(std::string bytes, std::string file, const PickleLimits& limits = {});

  Pickle(const Pickle&) = delete; ///< a copy's values would be the first one's
  Pickle& operator=(const Pickle&) = delete;
  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = default;
  ~Pickle() = default;

  [[nodiscard]] const PickleValue& root() const { return *root_; }

  [[nodiscard]] const std::string& file() const { return file_; }

  /// Throws:  mh::Error "FILE: byte N: WHY" of a value's place
  [[noreturn]] void refuse(const PickleValue& value, const std::string& why) const;

  /// The integers of a tuple, a list or a torch.Size.
  ///
  /// Throws:  mh::Error if it is something else; `what` says what it should be
  [[nodiscard]] std::vector<int64_t>
  integers(const PickleValue& value, const std::string& what) const;

private:
  class Machine;
  std::string bytes_, file_;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

/// Whether pickles may name it: "torch.Size".
[[nodiscard]] bool is_allowed_global(std::string_view name);

/// Writes a pickle of protocol 2, value by value, each after those that it is made of:
///
/// ```cpp
/// mh::PickleWriter out;
/// out.mark().text("step").integer(7).dict();   // {"step": 7}
/// const std::string bytes = out.finish();
/// ```
class PickleWriter {
public:
  PickleWriter();
  PickleWriter& none();
  PickleWriter& boolean(bool value);
  PickleWriter& integer(int64_t value);
  PickleWriter& text(std::string_view value); ///< value: less than 4 GiB
  /// A class or function.
  PickleWriter& global(std::string_view module, std::string_view name);
  /// Begins a tuple, list or dict.
  PickleWriter& mark();
  /// Makes a tuple or a list of everything since the mark.
  PickleWriter& tuple();
  PickleWriter& list();
  PickleWriter& dict(); ///< key, value, key, value, ...
  /// Calls the global with the tuple after it.
  PickleWriter& reduce();
  /// Makes an object of the class with the tuple after it.
  PickleWriter& make();
  /// Gives the object its attributes, the dict (or what its class takes) after it.
  PickleWriter& build();
  /// Makes the tuple before it the id of an object that is stored elsewhere.
  PickleWriter& persistent();
  /// (1, 2, 3)
  PickleWriter& integers(const std::vector<int64_t>& values);
  /// The pickle, whose value is what was left.
  [[nodiscard]] std::string finish();

private:
  /// The place of the newest mark that nothing has closed.
  size_t last_mark();

  std::string out_;
  std::vector<size_t> marks_;
};

} // namespace mh
