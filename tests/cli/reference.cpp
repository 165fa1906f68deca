#include "core/cli/reference/reference.hpp"

#include "core/cli/command.hpp"
#include "core/cli/topics.hpp"
#include "megahost/error.hpp"

#include <doctest/doctest.h>

TEST_CASE("a header becomes its file comment and its declarations") {
  const std::string text = mh::header_text(R"(#pragma once
/// The purpose of it.
///
///     mh::Example code;

#include <string>

namespace mh {

class Forward;

namespace other {
class Forward;
}

namespace detail {
/// Private.
void hidden();
} // namespace detail

/// A thing.
///
/// Shapes:  x [a, b]
///          y [c]
/// Throws:  mh::Error
class MH_API Thing {
public:
  /// Does it.
  void run() { value_ = 1; }

private:
  int value_ = 0;
};

struct Plain {
  int x = 0; ///< how far
};

/// Twice as much.
[[nodiscard]] inline int twice(int x) {
  return 2 * x;
}

/// Three of them.
inline constexpr std::array<int, 3> kThree{{1, 2, 3}};

/// Says it.
#define MH_SAY(a_, b_)  \
  do {                  \
  } while (false)

} // namespace mh
)");
  CHECK(text == R"(The purpose of it.

    mh::Example code;

## `Thing`

A thing.

- **Shapes**: x [a, b]
  y [c]
- **Throws**: mh::Error

```cpp
class MH_API Thing {
public:
  /// Does it.
  void run() { value_ = 1; }
};
```

## `Plain`

```cpp
struct Plain {
  int x = 0; ///< how far
};
```

## `twice`

Twice as much.

```cpp
[[nodiscard]] inline int twice(int x);
```

## `kThree`

Three of them.

```cpp
inline constexpr std::array<int, 3> kThree{{1, 2, 3}};
```

## `MH_SAY`

Says it.

```cpp
#define MH_SAY(a_, b_)
```

)");
}

TEST_CASE("the manual page names every command, option, exit status and variable") {
  const std::string page = mh::manual_page("1.2.3");
  const auto troff = [](std::string text) {
    for (size_t at = 0; (at = text.find('-', at)) != std::string::npos; at += 2) {
      text.insert(at, "\\");
    }
    return text;
  };
  const auto has = [&](const std::string& text) { return page.find(text) != std::string::npos; };
  for (const mh::Command& command : mh::commands()) {
    CAPTURE(command.name);
    CHECK(has(".SS megahost " + troff(std::string(command.name))));
    for (const auto& [word, meaning] : mh::words_of(command)) {
      CAPTURE(word);
      CHECK(has(".B " + troff(word) + "\n"));
    }
  }
  for (const mh::Variable& variable : mh::variables()) {
    CHECK(has(".B " + std::string(variable.name) + "\n"));
  }
  CHECK(has(".B 6\nnumbers"));
}

TEST_CASE("every exit status of the program is explained, and topics are found") {
  for (const int code :
       {mh::exit_code::other,
        mh::exit_code::recipe,
        mh::exit_code::memory,
        mh::exit_code::communication,
        mh::exit_code::data,
        mh::exit_code::numbers}) {
    bool found = false;
    for (const mh::ExitStatus& status : mh::exit_statuses()) {
      found = found || status.code == code;
    }
    CHECK(found);
  }
  REQUIRE(mh::find_topic("exit-codes"));
  CHECK(mh::find_topic("exit codes") == mh::find_topic("exit_codes"));
  CHECK(mh::find_topic("exit codes")->text.find("4  communication") != std::string::npos);
  CHECK(!mh::find_topic("weather"));
}
