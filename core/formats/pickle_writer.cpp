#include "core/formats/pickle.hpp"
#include "megahost/error.hpp"

#include <bit>

namespace mh {

PickleWriter::PickleWriter()
    : out_("\x80\x02") {}

PickleWriter& PickleWriter::none() {
  out_ += 'N';
  return *this;
}

PickleWriter& PickleWriter::boolean(bool value) {
  out_ += value ? '\x88' : '\x89';
  return *this;
}

PickleWriter& PickleWriter::integer(int64_t value) {
  const bool is_short = value >= INT32_MIN && value <= INT32_MAX;
  out_ += is_short ? "J" : "\x8a\x08";
  for (int i = 0; i < (is_short ? 4 : 8); ++i) {
    out_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return *this;
}

PickleWriter& PickleWriter::real(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  out_ += 'G';
  for (int i = 7; i >= 0; --i) {
    out_ += static_cast<char>(bits >> (8 * i));
  }
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  MH_ASSERT(value.size() <= UINT32_MAX, "a text of 4 GiB in a pickle");
  out_ += 'X';
  for (int i = 0; i < 4; ++i) {
    out_ += static_cast<char>(value.size() >> (8 * i));
  }
  out_ += value;
  return *this;
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_.append(module).append("\n").append(name).append("\n");
  return *this;
}

PickleWriter& PickleWriter::mark() {
  marks_.push_back(out_.size());
  out_ += '(';
  return *this;
}

size_t PickleWriter::last_mark() {
  MH_ASSERT(!marks_.empty(), "what is closed was marked");
  const size_t at = marks_.back();
  marks_.pop_back();
  return at;
}

PickleWriter& PickleWriter::tuple() {
  (void)last_mark();
  out_ += 't';
  return *this;
}

// An empty list or dictionary that is filled: torch.load knows no other form with weights_only.
PickleWriter& PickleWriter::list() {
  out_.insert(last_mark(), 1, ']');
  out_ += 'e';
  return *this;
}

PickleWriter& PickleWriter::dict() {
  out_.insert(last_mark(), 1, '}');
  out_ += 'u';
  return *this;
}

PickleWriter& PickleWriter::reduce() {
  out_ += 'R';
  return *this;
}

PickleWriter& PickleWriter::make() {
  out_ += '\x81';
  return *this;
}

PickleWriter& PickleWriter::build() {
  out_ += 'b';
  return *this;
}

PickleWriter& PickleWriter::persistent() {
  out_ += 'Q';
  return *this;
}

PickleWriter& PickleWriter::integers(const std::vector<int64_t>& values) {
  mark();
  for (const int64_t value : values) {
    integer(value);
  }
  return tuple();
}

std::string PickleWriter::finish() {
  return std::move(out_) + ".";
}

} // namespace mh
