#include "core/step/sample_arrays.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace mh {

namespace {

std::string array_words(ArraySpec::Type type, size_t length) {
  return std::string(type == ArraySpec::Type::int64 ? "int64" : "float32") + " [" +
         std::to_string(length) + "]";
}

std::string array_words(const Array& array) {
  const auto type = std::holds_alternative<std::vector<int64_t>>(array) ? ArraySpec::Type::int64
                                                                        : ArraySpec::Type::float32;
  return std::visit([&](const auto& values) { return array_words(type, values.size()); }, array);
}

std::string array_words(const ArraySpec& spec) {
  return array_words(spec.type, static_cast<size_t>(spec.length));
}

/// Ones, as many as `share` says, spread evenly over zeros.
std::vector<float> spread_ones(size_t length, double share) {
  std::vector<float> values(length);
  for (size_t i = 0; i < length; ++i) {
    const auto before = std::floor(static_cast<double>(i) * share);
    values[i] = std::floor(static_cast<double>(i + 1) * share) > before ? 1.0F : 0.0F;
  }
  return values;
}

class BlankSamples : public Corpus {
public:
  explicit BlankSamples(const std::vector<ArraySpec>& declared)
      : sample_(blank_sample(declared)) {}

  [[nodiscard]] int64_t size(Split) const override { return 1; }

  [[nodiscard]] Sample sample(Split, int64_t) const override { return sample_; }

  [[nodiscard]] std::string summary() const override { return "blank samples"; }

private:
  Sample sample_;
};

} // namespace

std::vector<ArraySpec>
declared_arrays(const Registry::Entry& corpus, const Value& options, const Corpus::Args& args) {
  auto arrays = corpus.arrays(options, &args);
  std::set<std::string> names;
  for (const auto& spec : arrays) {
    const std::string which = "the corpus " + corpus.full_name() + " declares `" + spec.name + "`";
    if (!names.insert(spec.name).second) {
      throw Error(which + " twice", "give each array a name of its own");
    }
    const bool per_token = spec.axis == axis::seq;
    if (per_token && !spec.sequence.empty() && !args.sequences.contains(spec.sequence)) {
      throw Error(
          which + " along the sequence `" + spec.sequence + "`, which the model does not read",
          "choose a model that reads it, or a corpus without it"
      );
    }
    const int64_t tokens =
        per_token && !spec.sequence.empty() ? args.sequences.at(spec.sequence) : args.seq_length;
    if (spec.length < 0 || (per_token && spec.length != tokens)) {
      throw Error(
          which + " with " + std::to_string(spec.length) + " elements" +
              (per_token ? " along the sequence of " + std::to_string(tokens) + " tokens"
                         : std::string()),
          per_token ? "give it an axis of its own, or an element for each token"
                    : "give it 0 elements or more"
      );
    }
  }
  return arrays;
}

std::string array_difference(const std::vector<ArraySpec>& declared, const Sample& sample) {
  for (const auto& spec : declared) {
    const auto found = sample.find(spec.name);
    if (found == sample.end()) {
      return "`" + spec.name + "` is declared, and not there";
    }
    if (array_words(found->second) != array_words(spec)) {
      return "`" + spec.name + "` is " + array_words(found->second) + ", declared " +
             array_words(spec);
    }
  }
  for (const auto& [name, array] : sample) {
    if (std::none_of(declared.begin(), declared.end(), [&](const auto& spec) {
          return spec.name == name;
        })) {
      return "`" + name + "` is " + array_words(array) + ", and not declared";
    }
  }
  return "";
}

bool compares_samples(const std::vector<ArraySpec>& read) {
  return std::ranges::any_of(read, [](const ArraySpec& spec) { return spec.axis == axis::batch; });
}

Sample blank_sample(const std::vector<ArraySpec>& declared) {
  Sample sample;
  for (const auto& spec : declared) {
    const auto length = static_cast<size_t>(spec.length);
    if (spec.type == ArraySpec::Type::int64) {
      sample.emplace(spec.name, std::vector<int64_t>(length));
    } else {
      sample.emplace(spec.name, spread_ones(length, spec.share));
    }
  }
  return sample;
}

std::unique_ptr<Corpus> blank_samples(const std::vector<ArraySpec>& declared) {
  return std::make_unique<BlankSamples>(declared);
}

} // namespace mh
