#include "core/mesh/processes.hpp"

#include "core/base/host_name.hpp"
#include "core/mesh/by_device.hpp"
#include "core/mesh/gloo.hpp"
#include "core/mesh/shared_memory.hpp"
#include "core/mesh/stall.hpp"
#include "core/mesh/store_text.hpp"
#include "megahost/device.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

namespace mh {

namespace {

using nlohmann::json;

constexpr std::chrono::seconds kFarewell{5};
constexpr std::chrono::milliseconds kUntilSilent{1500}; // ranks that failed with us say so by then

std::string place(const World& world) {
  return world.master_address + ":" + std::to_string(world.master_port);
}

/// A socket that listens on the master address and nowhere else.
int listen_at(const World& world) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(world.master_port);
  const int failed = getaddrinfo(world.master_address.c_str(), port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  std::string why = failed != 0 ? gai_strerror(failed) : "";
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 1024) == 0) {
      return fd;
    }
    why = std::strerror(errno);
    if (fd >= 0) {
      close(fd);
    }
  }
  throw Error(
      "rank 0 cannot listen at " + place(world) + ": " + why,
      "MASTER_ADDR must be an address of the machine of rank 0, and MASTER_PORT free there",
      exit_code::communication
  );
}

/// A socket that our launcher made before it started the ranks, or one of our own.
int listening_socket(const World& world) {
  const auto inherited = process_environment()("MEGAHOST_STORE_FD");
  return inherited ? std::atoi(inherited->c_str()) : listen_at(world);
}

c10::intrusive_ptr<c10d::Store> open_store(const Found& found, std::chrono::milliseconds timeout) {
  const World& world = found.world;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.isServer = world.rank == 0 && !found.agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) {
    options.masterListenFd = listening_socket(world);
  }
  // Our own error says what fails; LibTorch logs it with a stack of its functions first.
  const int level = FLAGS_caffe2_log_level; // lower where TORCH_CPP_LOG_LEVEL asks for more
  FLAGS_caffe2_log_level = level == c10::GLOG_ERROR ? static_cast<int>(c10::GLOG_FATAL) : level;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(world.master_address, options);
    FLAGS_caffe2_log_level = level;
    return store;
  } catch (...) {
    FLAGS_caffe2_log_level = level;
    throw;
  }
}

std::string here_key(int64_t rank) {
  return "here/" + std::to_string(rank);
}

/// The ranks that have not come, and for how long this one has waited for them; empty if all came, or
/// the store does not say.
std::string who_is_absent(
    const c10::intrusive_ptr<c10d::Store>& store,
    const World& world,
    std::chrono::milliseconds waited
) {
  if (!store) {
    return "";
  }
  std::vector<int64_t> absent;
  try {
    for (int64_t rank = 0; rank < world.size; ++rank) {
      if (!store->check({here_key(rank)})) {
        absent.push_back(rank);
      }
    }
  } catch (const std::exception&) { // rank 0 has ended meanwhile
    return "";
  }
  if (absent.empty()) {
    return "";
  }
  return ranks_text(absent) + " did not come within " + std::to_string(waited.count() / 1000) +
         " s";
}

/// The interface that a run's data pass: that of the store where it is this machine's own.
std::string interface_of(const World& world) {
  if (const auto given = process_environment()("GLOO_SOCKET_IFNAME")) {
    return *given;
  }
  const bool here = world.master_address.starts_with("127.") || world.master_address == "localhost";
  return here ? "127.0.0.1" : "";
}

bool is_known_name(const std::string& host) {
  addrinfo* found = nullptr;
  const bool known = getaddrinfo(host.c_str(), nullptr, nullptr, &found) == 0;
  if (known) {
    freeaddrinfo(found);
  }
  return known;
}

/// The reason of the store's client in a user's words, where these say more.
std::string plain_words(const World& world, const std::string& said) {
  if (said.find("Ping failed") != std::string::npos) {
    return "what answers there is another program, or of another version of LibTorch";
  }
  if (said.find("trying to connect") != std::string::npos && !is_known_name(world.master_address)) {
    return "no address is known of a host " + world.master_address;
  }
  return said;
}

Error not_met(const World& world, const std::string& why) {
  return Error(
      "rank " + std::to_string(world.rank) + " did not meet the other " +
          std::to_string(world.size - 1) + " at " + place(world) + ": " + plain_words(world, why),
      "look that all processes of the run were started and reach that address; comm.timeout says "
      "how long they wait",
      exit_code::communication
  );
}

/// The first line in which two texts differ, of each.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  std::string one, other;
  while (true) {
    const bool more = static_cast<bool>(std::getline(left, one));
    const bool too = static_cast<bool>(std::getline(right, other));
    if (!more || !too || one != other) {
      return {more ? one : "nothing", too ? other : "nothing"};
    }
  }
}

/// The first difference between rank 0's texts and another rank's.
std::string other_run(
    int64_t rank, const std::vector<Processes::Part>& parts, const json& own, const json& other
) {
  for (size_t i = 0; i < parts.size() && i < other.size(); ++i) {
    const std::string left = own[i], right = other[i];
    if (left != right) {
      const auto [here, there] = first_difference(left, right);
      return "rank " + std::to_string(rank) + " has another " + parts[i].name +
             " than rank 0: " + there + ", where rank 0 has " + here;
    }
  }
  return "rank " + std::to_string(rank) + " has another recipe or other plugins than rank 0";
}

/// Rank 0, whose store the others read, goes last of `ranks`; it does not wait for long.
void farewell(c10d::Store& store, const World& world, int64_t ranks) {
  const int64_t gone = store.add("gone", 1);
  if (world.rank != 0) {
    return;
  }
  const auto end = std::chrono::steady_clock::now() + kUntilSilent;
  for (int64_t count = gone; count < ranks && std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    count = store.add("gone", 0);
  }
}

/// Tells rank 0 where this rank is; what rank 0 says of all.
std::string where_all_are(c10d::Store& store, const World& world, const Collective& own) {
  const auto key = [](int64_t rank) { return "at/" + std::to_string(rank); };
  store.set(key(world.rank), bytes_of(progress_text({.last = own})));
  int64_t answered = 0;
  if (world.rank == 0) {
    std::vector<Collective> last(static_cast<size_t>(world.size));
    const auto end = std::chrono::steady_clock::now() + kUntilSilent;
    for (int64_t rank = 0; rank < world.size; ++rank) {
      while (!store.check({key(rank)}) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (store.check({key(rank)})) {
        last[static_cast<size_t>(rank)] = parse_progress(text_of(store.get(key(rank)))).last;
      }
    }
    store.set("at", bytes_of(compare_collectives(last)));
    answered = std::count_if(last.begin(), last.end(), [](const Collective& one) {
      return one.number > 0;
    });
  }
  store.wait({"at"}, 2 * kUntilSilent);
  const std::string where = text_of(store.get("at"));
  farewell(store, world, answered);
  return where;
}

} // namespace

Processes::Processes(const Found& found, std::chrono::milliseconds timeout)
    : found_(found)
    , timeout_(timeout) {
  const World& world = found_.world;
  std::string all; // "1", or which ranks did not come, as rank 0 found
  try {
    const auto shared = open_store(found_, timeout_);
    const int64_t attempt = (shared->add("megahost/arrivals", 1) - 1) / world.size;
    store_ = c10::make_intrusive<c10d::PrefixStore>("megahost/" + std::to_string(attempt), shared);
    store_->set(here_key(world.rank), bytes_of(host_name()));
    if (store_->add("ready", 1) == world.size) {
      store_->set("all", "1");
    }
    store_->wait({"all"}, timeout_);
    all = text_of(store_->get("all"));
  } catch (const c10::Error& error) {
    all = who_is_absent(store_, world, timeout_);
    if (all.empty()) {
      throw not_met(world, error.what_without_backtrace());
    }
    if (world.rank == 0) {
      store_->set("all", bytes_of(all));
    }
  }
  if (all != "1") {
    try {
      farewell(*store_, world, world.size);
    } catch (const c10::Error&) { // rank 0 has said it, and is gone
    }
    throw not_met(world, all);
  }
}

Processes::~Processes() {
  if (std::uncaught_exceptions() > 0) { // no rank waits for one that failed
    return;
  }
  try {
    if (store_->add("done", 1) == found_.world.size) {
      store_->set("all done", "1");
    }
    if (found_.world.rank == 0) {
      store_->wait({"all done"}, kFarewell);
    }
  } catch (const std::exception&) { // the others have failed: the store is not needed
  }
}

void Processes::require_same(const std::vector<Part>& parts) const {
  const World& world = found_.world;
  if (world.size == 1) {
    return;
  }
  json mine = json::array();
  for (const Part& part : parts) {
    mine.push_back(part.text);
  }
  const std::string& subject = parts.front().name;
  const auto key = [&subject](int64_t rank) { return subject + "/" + std::to_string(rank); };
  std::string verdict;
  try {
    store_->set(
        key(world.rank), bytes_of(mine.dump(-1, ' ', false, json::error_handler_t::replace))
    );
    if (world.rank == 0) {
      const std::string own = text_of(store_->get(key(0)));
      for (int64_t rank = 1; rank < world.size && verdict.empty(); ++rank) {
        const std::string other = text_of(store_->get(key(rank)));
        if (other != own) {
          verdict = other_run(rank, parts, json::parse(own), json::parse(other));
        }
      }
      store_->set(subject, bytes_of(verdict.empty() ? "same" : verdict));
    }
    verdict = text_of(store_->get(subject));
    if (verdict != "same") {
      farewell(*store_, world, world.size);
    }
  } catch (const c10::Error& error) {
    throw not_met(world, error.what_without_backtrace());
  }
  if (verdict != "same") {
    throw Error(
        verdict,
        "start all ranks with the same command, and the same files on every machine",
        exit_code::communication
    );
  }
}

Error Processes::explained(const CollectiveError& error) const {
  const Collective own = error.last().empty() ? Collective{} : error.last().front();
  // A store whose process is stopped never answers: whoever asks it is left behind then.
  auto said = std::make_shared<std::promise<std::string>>();
  auto where = said->get_future();
  std::thread([said, own, store = store_, world = found_.world] {
    try {
      said->set_value(where_all_are(*store, world, own));
    } catch (const std::exception&) { // rank 0 is gone, and the store with it
      said->set_value("");
    }
  }).detach();
  const bool heard = where.wait_for(3 * kUntilSilent) == std::future_status::ready;
  const std::string all = heard ? where.get() : "";
  return all.empty() ? static_cast<const Error&>(error)
                     : Error(
                           std::string(error.what()) + ". Where they are: " + all,
                           error.hint(),
                           error.exit_code()
                       );
}

std::unique_ptr<HangWatch> Processes::watch(
    const std::shared_ptr<CollectiveLog>& log, double after, const HangWatch::Say& say
) const {
  if (after <= 0 || world().size == 1) {
    return nullptr;
  }
  return std::make_unique<HangWatch>(
      HangWatch::Terms{
          .rank = world().rank,
          .ranks = world().size,
          .local_ranks = world().local_size,
          .after = after,
          .timeout = std::chrono::duration<double>(timeout_).count()},
      c10::make_intrusive<c10d::PrefixStore>("watch", store_->clone()),
      log,
      say
  );
}

std::unique_ptr<Meeting> Processes::meeting(const std::string& name) const {
  return std::make_unique<Meeting>(
      c10::make_intrusive<c10d::PrefixStore>(name, store_->clone()),
      Meeting::Terms{.rank = world().rank, .ranks = world().size, .timeout = timeout_}
  );
}

MakeBackend Processes::make_backend(const Device* device) const {
  return [this,
          device](const std::string& name, const std::vector<int64_t>& members, int64_t index) {
    if (index < 0) {
      return c10::intrusive_ptr<c10d::Backend>();
    }
    const int rank = static_cast<int>(index);
    const int size = static_cast<int>(members.size());
    try {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      const bool on_host = device == nullptr || device->device().is_cpu();
      auto own = device == nullptr ? c10::intrusive_ptr<c10d::Backend>()
                                   : device->transport({store, rank, size, timeout_});
      if (own == nullptr && !on_host) {
        throw Error(
            "this device brings no transport between ranks, and those of the host carry the host's "
            "tensors only",
            "train on one rank, or ask its author for Device::transport"
        );
      }
      // Connected only where it is kept: who drops an end of Gloo early breaks the others'.
      if (own != nullptr && on_host) {
        return own;
      }
      const std::string node = "node of rank " + std::to_string(world().rank - world().local_rank);
      auto host = make_shared_memory(
          store, {.ranks = members, .member = rank, .machine = node, .timeout = timeout_}
      );
      if (host == nullptr) {
        host = make_gloo(store, rank, size, interface_of(world()), timeout_);
      }
      return own == nullptr ? host : by_device(host, own);
    } catch (const c10::Error& error) {
      throw not_met(world(), error.what_without_backtrace());
    }
  };
}

} // namespace mh
