#include "core/mesh/processes.hpp"

#include "core/mesh/gloo.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>

namespace mh {

namespace {

constexpr std::chrono::seconds kFarewell{5};

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
  return c10::make_intrusive<c10d::TCPStore>(world.master_address, options);
}

/// The interface that a run's data pass: that of the store where it is this machine's own.
std::string interface_of(const World& world) {
  if (const auto given = process_environment()("GLOO_SOCKET_IFNAME")) {
    return *given;
  }
  const bool here = world.master_address.starts_with("127.") || world.master_address == "localhost";
  return here ? "127.0.0.1" : "";
}

Error not_met(const World& world, const c10::Error& error) {
  return Error(
      "rank " + std::to_string(world.rank) + " did not meet the other " +
          std::to_string(world.size - 1) + " at " + place(world) + ": " +
          error.what_without_backtrace(),
      "look that all processes of the run were started and reach that address; comm.timeout says "
      "how "
      "long they wait",
      exit_code::communication
  );
}

} // namespace

Processes::Processes(const Found& found, std::chrono::milliseconds timeout)
    : found_(found)
    , timeout_(timeout) {
  const World& world = found_.world;
  try {
    const auto shared = open_store(found_, timeout_);
    const int64_t attempt = (shared->add("megahost/arrivals", 1) - 1) / world.size;
    store_ = c10::make_intrusive<c10d::PrefixStore>("megahost/" + std::to_string(attempt), shared);
    if (store_->add("ready", 1) == world.size) {
      store_->set("all", "1");
    }
    store_->wait({"all"}, timeout_);
  } catch (const c10::Error& error) {
    throw not_met(world, error);
  }
}

Processes::~Processes() {
  if (std::uncaught_exceptions() > 0) { // nobody waits for a rank that failed
    return;
  }
  try {
    if (store_->add("done", 1) == found_.world.size) {
      store_->set("all done", "1");
    }
    if (found_.world.rank == 0) {
      store_->wait({"all done"}, kFarewell);
    }
  } catch (const std::exception&) { // the others have failed: nobody needs the store
  }
}

MakeBackend Processes::make_backend() const {
  return [this](const std::string& name, const std::vector<int64_t>& members, int64_t index) {
    if (index < 0) {
      return c10::intrusive_ptr<c10d::Backend>();
    }
    try {
      return make_gloo(
          c10::make_intrusive<c10d::PrefixStore>(name, store_),
          static_cast<int>(index),
          static_cast<int>(members.size()),
          interface_of(world()),
          timeout_
      );
    } catch (const c10::Error& error) {
      throw not_met(world(), error);
    }
  };
}

} // namespace mh
