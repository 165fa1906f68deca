#include "core/import/given.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <charconv>

namespace mh {

const MegatronArgument* known_argument(std::string_view name) {
  const auto all = megatron_arguments();
  const auto found = std::find_if(all.begin(), all.end(), [&](const MegatronArgument& argument) {
    return std::equal(
        argument.name.begin(),
        argument.name.end(),
        name.begin(),
        name.end(),
        [](char a, char b) { return a == b || (a == '_' && b == '-'); }
    );
  });
  return found == all.end() ? nullptr : &*found;
}

namespace {

bool is_argument(const std::string& word) {
  return word.starts_with("--") && word.size() > 2;
}

} // namespace

std::string GivenArgument::text() const {
  return said.empty() ? "--" + name + (values.empty() ? "" : " ") + join(values, " ") : said;
}

std::string GivenArgument::label() const {
  return said.empty() ? "--" + name : said.substr(0, said.find(" = "));
}

double argument_number(const GivenArgument& argument, const std::string& text) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || failure != std::errc() || end != text.data() + text.size()) {
    throw Error(argument.label() + " is " + string_text(text) + ", expected a number");
  }
  return number;
}

GivenArguments::GivenArguments(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size();) {
    if (!is_argument(words[i])) {
      throw Error(
          string_text(words[i]) + " belongs to no argument" +
              (all_.empty() ? "" : ": " + all_.back().text() + " stands before it"),
          "arguments begin with two dashes"
      );
    }
    const size_t equals = words[i].find('=');
    GivenArgument given{nullptr, words[i].substr(2, equals - 2), {}, {}};
    given.known = known_argument(given.name);
    if (given.known != nullptr) {
      given.name = given.known->name;
    }
    if (equals != std::string::npos) {
      given.values.push_back(words[i].substr(equals + 1));
    }
    ++i;
    const Takes takes = given.known != nullptr ? given.known->takes : Takes::many;
    const size_t most = takes == Takes::none ? 0 : takes == Takes::one ? 1 : words.size();
    while (i < words.size() && !is_argument(words[i]) && given.values.size() < most) {
      given.values.push_back(words[i++]);
    }
    if (given.known != nullptr && given.values.empty() && takes != Takes::none) {
      throw Error("--" + given.name + " has no value behind it");
    }
    if (takes == Takes::none && !given.values.empty()) {
      throw Error("--" + given.name + " takes no value, found " + string_text(given.values[0]));
    }
    std::erase_if(all_, [&](const GivenArgument& other) { return other.name == given.name; });
    all_.push_back(std::move(given));
  }
}

const GivenArgument* GivenArguments::find(std::string_view name) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const GivenArgument& argument) {
    return argument.name == name;
  });
  return found == all_.end() ? nullptr : &*found;
}

std::string GivenArguments::text(std::string_view name, const std::string& otherwise) const {
  const GivenArgument* found = find(name);
  return found == nullptr || found->values.empty() ? otherwise : found->values.front();
}

double GivenArguments::number(std::string_view name, double otherwise) const {
  const GivenArgument* found = find(name);
  return found == nullptr ? otherwise : argument_number(*found, found->values.front());
}

int64_t GivenArguments::integer(std::string_view name, int64_t otherwise) const {
  const GivenArgument* found = find(name);
  if (found == nullptr) {
    return otherwise;
  }
  const auto whole = exact_integer(argument_number(*found, found->values.front()));
  if (!whole) {
    throw Error(found->label() + " is " + found->values.front() + ", expected a whole number");
  }
  return *whole;
}

} // namespace mh
