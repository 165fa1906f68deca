#pragma once
/// Ranks that show one another texts over the store, for a thread that runs next to training: the
/// groups' transports are the training's, and take one collective at a time.
///
/// ```cpp
/// mh::Meeting meeting(store, {.rank = 2, .ranks = 8, .timeout = std::chrono::minutes(10)});
/// const std::vector<std::string> all = meeting.ranks().gather("text of rank 2");
/// ```

#include "megahost/export.hpp"
#include "megahost/ranks.hpp"

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace mh {

class MH_API Meeting {
public:
  struct Terms {
    int64_t rank = 0, ranks = 1;
    std::chrono::milliseconds timeout{0}; ///< after which a rank gives up
  };

  /// `store`: this connection has no other user that waits on it
  Meeting(c10::intrusive_ptr<c10d::Store> store, const Terms& terms);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// The ranks that meet, from one thread of each rank; the meeting outlives the result.
  [[nodiscard]] Ranks ranks();

  /// A rank is lost: whoever waits for the others gives up now, and whoever would.
  void end() { ended_ = true; }

private:
  std::vector<std::string> gather(const std::string& text);
  std::string await(const std::string& key, int64_t rank);

  c10::intrusive_ptr<c10d::Store> store_;
  Terms terms_;
  int64_t round_ = 0;
  std::atomic<bool> ended_ = false;
};

} // namespace mh
