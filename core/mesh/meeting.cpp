#include "core/mesh/meeting.hpp"

#include "megahost/error.hpp"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace mh {

namespace {

using Bytes = std::vector<uint8_t>;

std::string key_of(int64_t round, const std::string& what) {
  return std::to_string(round) + "/" + what;
}

Error not_there(const std::string& why) {
  return Error(
      "the ranks did not meet to save: " + why,
      "look for the error of another rank above",
      exit_code::communication
  );
}

/// The answer of a store. One whose process is stopped never gives any, and a connection cannot be
/// told to give up: the thread that asks is left behind then.
template <class Question>
auto answer_of(
    const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds timeout,
    const std::atomic<bool>& ended,
    Question question
) {
  constexpr std::chrono::milliseconds kLook{50};
  using Answer = decltype(question(*store));
  const auto asking =
      std::make_shared<std::packaged_task<Answer()>>([store, question = std::move(question)] {
        return question(*store);
      });
  std::future<Answer> answer = asking->get_future();
  std::thread([asking] { (*asking)(); }).detach();
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (answer.wait_for(kLook) != std::future_status::ready) {
    if (ended) {
      throw not_there("a rank is lost");
    }
    if (std::chrono::steady_clock::now() > end) {
      throw not_there("the store of rank 0 does not answer");
    }
  }
  return answer.get();
}

} // namespace

Meeting::Meeting(c10::intrusive_ptr<c10d::Store> store, const Terms& terms)
    : store_(std::move(store))
    , terms_(terms) {}

Meeting::~Meeting() = default;

Ranks Meeting::ranks() {
  return {terms_.rank, [this](const std::string& text) { return gather(text); }};
}

/// A text that another rank sets. The store is asked again and again, as a connection that waits
/// cannot be told to give up.
std::string Meeting::await(const std::string& key, int64_t rank) {
  constexpr std::chrono::milliseconds kLongestPause{50};
  const auto ask = [&](auto question) {
    return answer_of(store_, terms_.timeout, ended_, std::move(question));
  };
  const auto end = std::chrono::steady_clock::now() + terms_.timeout;
  std::chrono::milliseconds pause{1};
  while (!ask([key](c10d::Store& store) { return store.check({key}); })) {
    if (ended_) {
      throw not_there("a rank is lost");
    }
    if (std::chrono::steady_clock::now() > end) {
      throw not_there("rank " + std::to_string(rank) + " did not come");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  const Bytes bytes = ask([key](c10d::Store& store) { return store.get(key); });
  return {bytes.begin(), bytes.end()};
}

/// Rank 0 collects and tells all. When it has the texts of a round, everybody has read those of the
/// round before, whose keys are removed.
std::vector<std::string> Meeting::gather(const std::string& text) {
  try {
    const int64_t round = round_++;
    std::vector<std::string> texts{text};
    if (terms_.ranks > 1 && terms_.rank == 0) {
      for (int64_t rank = 1; rank < terms_.ranks; ++rank) {
        const std::string key = key_of(round, std::to_string(rank));
        texts.push_back(await(key, rank));
        store_->deleteKey(key);
      }
      const Bytes all = nlohmann::json::to_cbor(texts);
      store_->set(key_of(round, "all"), all);
      store_->deleteKey(key_of(round - 1, "all"));
    } else if (terms_.ranks > 1) {
      store_->set(key_of(round, std::to_string(terms_.rank)), Bytes(text.begin(), text.end()));
      const std::string all = await(key_of(round, "all"), 0);
      texts = nlohmann::json::from_cbor(all).get<std::vector<std::string>>();
    }
    return texts;
  } catch (const c10::Error& error) {
    throw not_there(error.what_without_backtrace());
  }
}

} // namespace mh
