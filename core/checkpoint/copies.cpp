#include "core/checkpoint/copies.hpp"

#include "core/base/host_name.hpp"
#include "core/base/text.hpp"
#include "core/formats/crc32c.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <sstream>

namespace mh {

namespace {

std::string name_of(const Piece& piece) {
  std::vector<std::string> offset;
  for (const int64_t begin : piece.offset) {
    offset.push_back(std::to_string(begin));
  }
  return piece.name + (piece.shape == piece.global_shape ? "" : "@" + join(offset, ","));
}

uint32_t sum_of(const at::Tensor& slice) {
  const at::Tensor bytes = slice.detach().cpu().contiguous();
  return crc32c(std::as_bytes(std::span(
      static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.nbytes())
  )));
}

/// The ranks of a slice by what they hold.
using Holders = std::map<std::string, std::vector<int64_t>>;

/// The ranks that differ from more than half of all; all, if no such half agrees.
std::vector<int64_t> odd_ones(const Holders& holders, bool& ret_majority) {
  size_t all = 0;
  for (const auto& [sum, ranks] : holders) {
    all += ranks.size();
  }
  ret_majority = std::any_of(holders.begin(), holders.end(), [all](const auto& one) {
    return 2 * one.second.size() > all;
  });
  std::vector<int64_t> odd;
  for (const auto& [sum, ranks] : holders) {
    if (!ret_majority || 2 * ranks.size() <= all) {
      odd.insert(odd.end(), ranks.begin(), ranks.end());
    }
  }
  std::sort(odd.begin(), odd.end());
  return odd;
}

} // namespace

std::string copy_sums(const ParameterStore& store) {
  std::string text = host_name();
  for (const Parameter& parameter : store.all()) {
    for (const Piece& piece : parameter.pieces) {
      if (piece.copies > 1) {
        text +=
            "\n" + crc_text(sum_of(parameter.view(parameter.value, piece))) + " " + name_of(piece);
      }
    }
  }
  return text;
}

std::vector<std::string> DifferentCopies::machines() const {
  std::vector<std::string> names = hosts;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string DifferentCopies::text() const {
  std::vector<std::string> named;
  for (size_t i = 0; i < ranks.size(); ++i) {
    named.push_back(std::to_string(ranks[i]) + " (host " + hosts[i] + ")");
  }
  const bool one = ranks.size() == 1;
  return std::to_string(slices) + (slices == 1 ? " slice" : " slices") + " of the weights" +
         (slices == 1 ? " differs" : " differ") +
         " between ranks that should hold the same bits, first " + slice +
         (majority ? std::string(": ") + (one ? "rank " : "ranks ") + join(named) +
                         (one ? " holds" : " hold") + " other bits than most"
                   : ": among ranks " + join(named) + " no majority agrees");
}

std::optional<DifferentCopies> different_copies(const std::vector<std::string>& sums) {
  std::vector<std::string> hosts;
  std::map<std::string, Holders> slices;
  std::vector<std::string> order;
  for (const std::string& lines : sums) {
    const auto rank = static_cast<int64_t>(hosts.size());
    std::istringstream stream(lines);
    std::string line;
    std::getline(stream, line);
    hosts.push_back(line);
    while (std::getline(stream, line)) {
      const size_t space = line.find(' ');
      const auto [slice, added] = slices.try_emplace(line.substr(space + 1));
      slice->second[line.substr(0, space)].push_back(rank);
      if (added) {
        order.push_back(slice->first);
      }
    }
  }
  std::optional<DifferentCopies> found;
  for (const std::string& name : order) {
    const Holders& holders = slices.at(name);
    if (holders.size() < 2) {
      continue;
    }
    if (!found) {
      found.emplace().slice = name;
      found->ranks = odd_ones(holders, found->majority);
      for (const int64_t rank : found->ranks) {
        found->hosts.push_back(hosts[static_cast<size_t>(rank)]);
      }
    }
    ++found->slices;
  }
  return found;
}

} // namespace mh
