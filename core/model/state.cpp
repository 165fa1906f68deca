#include "megahost/state.hpp"

#include <algorithm>

namespace mh {

namespace {

template <class Items>
auto find(Items& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const auto& item) {
    return item.first == name;
  });
}

} // namespace

State::State(std::string name, at::Tensor value, Dims dims) {
  items_.emplace_back(std::move(name), Activation{std::move(value), std::move(dims)});
}

bool State::has(std::string_view name) const {
  return find(items_, name) != items_.end();
}

const Activation& State::operator[](std::string_view name) const {
  const auto found = find(items_, name);
  if (found == items_.end()) {
    std::string names;
    for (const auto& [other, activation] : items_) {
      names += " `" + other + "`";
    }
    throw InternalError(
        "the state has no activation `" + std::string(name) + "`; it holds" + names
    );
  }
  return found->second;
}

void State::set(std::string_view name, at::Tensor value, Dims dims) {
  const auto found = find(items_, name);
  if (found == items_.end()) {
    items_.emplace_back(std::string(name), Activation{std::move(value), std::move(dims)});
  } else {
    found->second = {std::move(value), std::move(dims)};
  }
}

State State::with(std::string_view name, at::Tensor value) const {
  State copy = *this;
  copy.set(name, std::move(value), (*this)[name].dims);
  return copy;
}

} // namespace mh
