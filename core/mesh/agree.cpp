#include "core/mesh/agree.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <new>

namespace mh {

namespace {

using nlohmann::json;

std::vector<std::string> gather_texts(const Group& group, const std::string& text) {
  if (group.size() == 1) {
    return {text};
  }
  const at::Tensor lengths =
      group.all_gather(at::full({1}, static_cast<int64_t>(text.size()), at::kLong), 0);
  const auto longest = std::max<int64_t>(1, lengths.max().item<int64_t>());
  at::Tensor mine = at::zeros({1, longest}, at::kByte);
  std::memcpy(mine.data_ptr<uint8_t>(), text.data(), text.size());
  const at::Tensor all = group.all_gather(mine, 0).contiguous();
  std::vector<std::string> texts;
  for (int64_t i = 0; i < group.size(); ++i) {
    const auto* begin = reinterpret_cast<const char*>(all.data_ptr<uint8_t>() + i * longest);
    texts.emplace_back(begin, static_cast<size_t>(lengths[i].item<int64_t>()));
  }
  return texts;
}

json outcome(const std::function<std::string()>& action) {
  try {
    return {{"text", action()}};
  } catch (const Error& error) {
    return {{"error", {error.what(), error.hint(), error.exit_code()}}};
  } catch (const std::bad_alloc&) {
    return {{"error", {"out of memory", "", exit_code::memory}}};
  } catch (const std::exception& error) {
    return {{"error", {error.what(), "", exit_code::other}}};
  }
}

} // namespace

Ranks ranks_of(const Group& group) {
  return {
      group.index(),
      [&group](const std::string& text) { return gather_texts(group, text); },
      &group};
}

std::vector<std::string> together(const Ranks& ranks, const std::function<std::string()>& action) {
  std::vector<std::string> texts;
  for (const std::string& text :
       ranks.gather(outcome(action).dump(-1, ' ', false, json::error_handler_t::replace))) {
    const json answer = json::parse(text);
    if (const auto error = answer.find("error"); error != answer.end()) {
      throw Error((*error)[0], (*error)[1], (*error)[2]);
    }
    texts.push_back(answer["text"]);
  }
  return texts;
}

std::string on_first(const Ranks& ranks, const std::function<std::string()>& action) {
  return together(ranks, [&] { return ranks.rank == 0 ? action() : std::string(); }).front();
}

int64_t largest(const Group& group, int64_t value) {
  if (group.size() == 1) {
    return value;
  }
  const at::Tensor shared = at::full({1}, value, at::kLong);
  group.all_reduce(shared, Reduce::max);
  return shared.item<int64_t>();
}

} // namespace mh
