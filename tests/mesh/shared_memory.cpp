// Members of one machine, each a process: what they show and send, and what they say of one that is gone.

#include "core/mesh/shared_memory.hpp"

#include "megahost/error.hpp"
#include "megahost/mesh.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace shared_memory_tests {

using namespace mh;

namespace {

using Member = std::function<void(int member, const c10::intrusive_ptr<c10d::Store>& store)>;

/// Each member is a process that ends with 0 if `body` does not throw; returns how many did.
int failures(int members, const Member& body) {
  char folder[] = "/tmp/megahost-mesh-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/store";
  std::vector<pid_t> children;
  for (int member = 0; member < members; ++member) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      at::set_num_threads(1); // a copy of a process has none of its threads
      int code = 0;
      try {
        body(member, c10::make_intrusive<c10d::FileStore>(path, members));
      } catch (const std::exception& error) {
        std::cerr << "member " << member << ": " << error.what() << std::endl;
        code = 1;
      }
      _exit(code);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  std::filesystem::remove_all(folder);
  return failed;
}

c10::intrusive_ptr<c10d::Backend> connect(
    const c10::intrusive_ptr<c10d::Store>& store,
    int member,
    int members,
    std::chrono::milliseconds timeout = std::chrono::seconds(60),
    const std::string& machine = "here"
) {
  std::vector<int64_t> ranks;
  for (int i = 0; i < members; ++i) {
    ranks.push_back(10 + i);
  }
  return make_shared_memory(
      store, {.ranks = ranks, .member = member, .machine = machine, .timeout = timeout}
  );
}

Group group_of(const c10::intrusive_ptr<c10d::Store>& store, int member, int members) {
  std::vector<int64_t> ranks;
  for (int i = 0; i < members; ++i) {
    ranks.push_back(i);
  }
  return {"all", ranks, member, connect(store, member, members)};
}

void require(bool right, const std::string& what) {
  if (!right) {
    throw std::runtime_error("wrong: " + what);
  }
}

/// Other values for each member.
at::Tensor values(int member, int64_t count, at::ScalarType type) {
  return (at::arange(count) % 101 + 7 * member).to(type);
}

/// The words of the error that `body` throws.
std::string failure(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

void require_words(const std::string& said, const std::string& words) {
  require(said.find(words) != std::string::npos, said + ", without: " + words);
}

void all_collectives(const Group& group, int member, int members, at::ScalarType type) {
  for (const int64_t count : {int64_t{0}, int64_t{members}, int64_t{members} * 100'003}) {
    const auto of = [&](int other) { return values(other, count, type); };
    at::Tensor sum = of(0), all = of(0), largest = of(members - 1);
    for (int other = 1; other < members; ++other) {
      sum = sum + of(other);
      all = at::cat({all, of(other)});
    }
    const at::Tensor own = of(member);
    const int64_t share = count / members;

    at::Tensor reduced = own.clone();
    group.all_reduce(reduced);
    require(at::equal(reduced, sum), "the sum");
    reduced = own.clone();
    group.all_reduce(reduced, Reduce::max);
    require(at::equal(reduced, largest), "the maximum");
    require(at::equal(group.all_gather(own, 0), all), "all values");
    require(
        at::equal(group.reduce_scatter(own, 0), sum.narrow(0, member * share, share)),
        "the share of the sum"
    );
    at::Tensor shares = of(0).narrow(0, member * share, share);
    for (int other = 1; other < members; ++other) {
      shares = at::cat({shares, of(other).narrow(0, member * share, share)});
    }
    require(at::equal(group.all_to_all(own, 0, 0), shares), "shares of all");
  }
}

} // namespace

TEST_CASE("collectives of processes of one machine are those of one process") {
  for (const int members : {2, 3}) {
    CHECK(failures(members, [members](int member, const auto& store) {
            const Group group = group_of(store, member, members);
            for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
              all_collectives(group, member, members, type);
            }
          }) == 0);
  }
}

TEST_CASE("rows go to each member in any number, and transfers arrive in order") {
  CHECK(failures(2, [](int member, const auto& store) {
          const Group group = group_of(store, member, 2);
          // Member 0 keeps one row of three and sends two, member 1 sends none and keeps four.
          const std::vector<int64_t> send =
              member == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{0, 4};
          const std::vector<int64_t> receive =
              member == 0 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{2, 4};
          const at::Tensor rows = values(member, member == 0 ? 3 : 4, at::kFloat);
          const at::Tensor got = group.all_to_all_rows(rows, send, receive);
          const at::Tensor first = values(0, 3, at::kFloat);
          require(
              at::equal(
                  got,
                  member == 0 ? first.narrow(0, 0, 1)
                              : at::cat({first.narrow(0, 1, 2), values(1, 4, at::kFloat)})
              ),
              "rows"
          );
          // More transfers than there is room for at once, of other sizes each.
          for (int64_t i = 0; i < 1'000; ++i) {
            if (member == 0) {
              (void)group.send(at::full({i % 50}, i, at::kLong), 1);
            } else {
              const at::Tensor arrived =
                  group.receive(at::empty_like(at::full({i % 50}, i, at::kLong)), 0).wait();
              require(at::equal(arrived, at::full({i % 50}, i, at::kLong)), "a transfer");
            }
          }
        }) == 0);
}

TEST_CASE("collectives may be waited for in another order than they began") {
  CHECK(failures(2, [](int member, const auto& store) {
          const Group group = group_of(store, member, 2);
          std::vector<at::Tensor> tensors;
          std::vector<Pending> pending;
          for (int64_t i = 0; i < 20; ++i) {
            tensors.push_back(at::full({1'000 * (i + 1)}, i + member, at::kFloat));
            pending.push_back(group.start_all_reduce(tensors.back()));
          }
          for (int64_t i = 19; i >= 0; --i) {
            const auto at = static_cast<size_t>(member == 0 ? i : 19 - i);
            (void)pending[at].wait();
          }
          for (int64_t i = 0; i < 20; ++i) {
            require(
                at::equal(
                    tensors[static_cast<size_t>(i)],
                    at::full({1'000 * (i + 1)}, 2 * i + 1, at::kFloat)
                ),
                "sum " + std::to_string(i)
            );
          }
        }) == 0);
}

TEST_CASE(
    "a member that has ended is named, one that does not come as well, and one at another collective"
) {
  CHECK(failures(2, [](int member, const auto& store) {
          const Group group("tp", {10, 11}, member, connect(store, member, 2));
          at::Tensor x = at::full({4}, 1.0f);
          group.all_reduce(x);
          if (member == 1) {
            _exit(0);
          }
          const auto began = std::chrono::steady_clock::now();
          require_words(failure([&] { group.all_reduce(x); }), "rank 11 has ended");
          require(
              std::chrono::steady_clock::now() - began < std::chrono::seconds(20), "long waiting"
          );
        }) == 0);
  CHECK(failures(2, [](int member, const auto& store) {
          const Group group(
              "tp", {10, 11}, member, connect(store, member, 2, std::chrono::milliseconds(500))
          );
          if (member == 1) {
            store->wait({"heard"});
            return;
          }
          require_words(
              failure([&] { (void)group.receive(at::full({4}, 1.0f), 1).wait(); }),
              "nothing came from rank 11 for 500 ms"
          );
          store->set("heard", std::vector<uint8_t>{1});
        }) == 0);
  CHECK(failures(2, [](int member, const auto& store) {
          const Group group("tp", {10, 11}, member, connect(store, member, 2));
          at::Tensor x = at::full({4}, 1.0f);
          require_words(
              failure([&] { member == 0 ? group.all_reduce(x) : (void)group.all_gather(x, 0); }),
              member == 0
                  ? "rank 11 is at another one: all-gather of 16 bytes, here all-reduce of 16 bytes"
                  : "rank 10 is at another one: all-reduce of 16 bytes, here all-gather of 16 bytes"
          );
        }) == 0);
}

TEST_CASE("members of which others say that they are on another machine share no memory") {
  CHECK(failures(3, [](int member, const auto& store) {
          require(
              connect(store, member, 3, std::chrono::seconds(60), member < 2 ? "one" : "two") ==
                  nullptr,
              "a transport"
          );
        }) == 0);
}

} // namespace shared_memory_tests
