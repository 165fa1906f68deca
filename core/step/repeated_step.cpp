#include "core/step/repeated_step.hpp"

#include "core/base/host_name.hpp"
#include "core/base/number_text.hpp"
#include "core/base/text.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace mh {

namespace {

constexpr double kApart = 0.01;

/// Exact, also of NaN.
std::string exact_text(double number) {
  return formatted("%a", number);
}

double number_in(std::istream& words) {
  std::string word;
  words >> word;
  return std::strtod(word.c_str(), nullptr);
}

/// "ranks 1 (host a), 3 (host b)".
std::string named(const std::vector<int64_t>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const int64_t rank : ranks) {
    names.push_back(std::to_string(rank) + " (host " + hosts[static_cast<size_t>(rank)] + ")");
  }
  return (names.size() == 1 ? "rank " : "ranks ") + join(names);
}

std::vector<double> own_losses(const StepResult& result) {
  std::vector<double> losses;
  for (const auto& loss : result.own_losses) {
    losses.push_back(number_of(loss));
  }
  return losses;
}

/// "the lm loss 4.2 instead of nan".
std::string change(const StepResult& first, const StepResult& again) {
  for (size_t i = 0; i < std::min(first.losses.size(), again.losses.size()); ++i) {
    const double was = first.losses[i].value, is = again.losses[i].value;
    if (are_apart(was, is)) {
      return formatted("the %s is %.4g instead of %.4g", first.losses[i].name.c_str(), is, was);
    }
  }
  return formatted(
      "the norm of the gradients is %.4g instead of %.4g", again.gradient_norm, first.gradient_norm
  );
}

bool are_same(const StepResult& first, const StepResult& again) {
  for (size_t i = 0; i < std::min(first.losses.size(), again.losses.size()); ++i) {
    if (are_apart(first.losses[i].value, again.losses[i].value)) {
      return false;
    }
  }
  return !are_apart(first.gradient_norm, again.gradient_norm);
}

/// Stands between parameters and the run's gradients, and sees what this rank adds to them before
/// they are summed over ranks.
class GradientWitness : public ParameterListener {
public:
  explicit GradientWitness(Gradients& gradients)
      : gradients_(gradients) {
    for (Parameter& parameter : gradients_.parameters().all()) {
      if (parameter.listener == &gradients_) {
        parameter.listener = this;
      }
    }
  }

  ~GradientWitness() override {
    for (Parameter& parameter : gradients_.parameters().all()) {
      if (parameter.listener == this) {
        parameter.listener = &gradients_;
      }
    }
  }

  GradientWitness(const GradientWitness&) = delete;
  GradientWitness& operator=(const GradientWitness&) = delete;

  bool needed(const std::vector<Parameter*>& parameters) override {
    return gradients_.needed(parameters);
  }

  void before(Parameter& parameter) override { gradients_.before(parameter); }

  void added(Parameter& parameter) override {
    const at::NoGradGuard no_grad;
    const double norm = number_of(parameter.main_grad.norm());
    seen_ += norm * norm;
    gradients_.added(parameter);
  }

  [[nodiscard]] double seen() const { return seen_; }

private:
  Gradients& gradients_;
  double seen_ = 0;
};

OwnNumbers
run_alone(const Passes& passes, std::span<const Batch> batches, const StepOptions& options) {
  auto& gradients = *passes.gradients;
  OwnNumbers numbers;
  {
    const GradientWitness witness(gradients);
    gradients.begin(static_cast<int64_t>(batches.size()));
    const LossSums sums = execute(
        passes,
        batches,
        training_instructions(passes, batches),
        {.seed = options.seed, .dropout = false, .loss_scale = options.loss_scale}
    );
    gradients.finish();
    numbers.gradients = witness.seen();
    for (const auto& loss : sums.own()) {
      numbers.loss += number_of(loss);
    }
  }
  gradients.clear();
  passes.model.forget_step();
  return numbers;
}

/// Work that two copies of the model have done and that came out otherwise.
struct Mismatch {
  int64_t rank = 0, other = 0; ///< ranks that did it
  int64_t copy = 0, other_copy = 0;
  double number = 0, other_number = 0;
};

std::vector<Mismatch> mismatches_of(const std::vector<ExchangedNumbers>& ranks) {
  std::map<std::pair<std::string, int64_t>, size_t> at;
  int64_t copies = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    at[{ranks[rank].place, ranks[rank].copy}] = rank;
    copies = std::max(copies, ranks[rank].copy + 1);
  }
  std::vector<Mismatch> found;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& one = ranks[rank];
    const size_t other =
        at.at({one.place, (one.copy + copies - 1) % copies}); // had its work as `next`
    const auto add = [&](double own, double others) {
      if (are_apart(own, others)) {
        found.push_back(
            {static_cast<int64_t>(rank),
             static_cast<int64_t>(other),
             one.copy,
             ranks[other].copy,
             own,
             others}
        );
      }
    };
    add(one.own.loss, ranks[other].next.loss);
    add(one.own.gradients, ranks[other].next.gradients);
  }
  return found;
}

/// A fault that makes numbers suspicious makes them large.
double size_of(double number) {
  return std::isfinite(number) ? std::abs(number) : std::numeric_limits<double>::infinity();
}

/// Whether all that differs is explained by wrong numbers of one copy of the model.
bool explains(int64_t copy, const std::vector<Mismatch>& all, bool by_size) {
  return std::all_of(all.begin(), all.end(), [&](const Mismatch& one) {
    const bool larger = size_of(one.number) > size_of(one.other_number);
    return (one.copy == copy && (!by_size || larger)) ||
           (one.other_copy == copy && (!by_size || !larger));
  });
}

/// The copies of the model of which one must be at fault.
std::set<int64_t> suspects_of(const std::vector<Mismatch>& all) {
  std::set<int64_t> copies, found;
  for (const Mismatch& one : all) {
    copies.insert({one.copy, one.other_copy});
  }
  for (const bool by_size : {true, false}) {
    for (const int64_t copy : copies) {
      if (explains(copy, all, by_size)) {
        found.insert(copy);
      }
    }
    if (!found.empty()) {
      return found;
    }
  }
  return copies; // several are
}

} // namespace

bool are_apart(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) {
    return std::isfinite(a) != std::isfinite(b);
  }
  return std::abs(a - b) > kApart * std::max(std::abs(a), std::abs(b));
}

Repetition compare_again(const Ranks& ranks, const StepResult& first, const StepResult& again) {
  const auto texts = together(ranks, [&] {
    const auto was = own_losses(first), is = own_losses(again);
    const bool changed =
        !std::equal(was.begin(), was.end(), is.begin(), is.end(), [](double a, double b) {
          return !are_apart(a, b);
        });
    return std::string(changed ? "1 " : "0 ") + host_name();
  });
  Repetition result;
  std::vector<std::string> hosts;
  for (const std::string& text : texts) {
    if (text.starts_with("1")) {
      result.ranks.push_back(static_cast<int64_t>(hosts.size()));
    }
    hosts.push_back(text.substr(2));
  }
  if (result.ranks.empty() && are_same(first, again)) {
    result.text = "the same numbers again";
    return result;
  }
  result.verdict = Repetition::Verdict::transient;
  result.text = change(first, again) + ": a fault of a moment (transient)" +
                (result.ranks.empty() ? ", not in the forward pass, so that its rank is not known"
                                      : " in the forward pass of " + named(result.ranks, hosts));
  return result;
}

Repetition compare_exchanged(const std::vector<ExchangedNumbers>& ranks) {
  const auto found = mismatches_of(ranks);
  if (found.empty()) {
    return {
        Repetition::Verdict::correct,
        {},
        "the same numbers again, on other ranks, too (correct): data and weights make them"};
  }
  const std::set<int64_t> copies = suspects_of(found);
  std::set<int64_t> guilty;
  for (const Mismatch& one : found) {
    if (copies.contains(one.copy)) {
      guilty.insert(one.rank);
    }
    if (copies.contains(one.other_copy)) {
      guilty.insert(one.other);
    }
  }
  std::vector<std::string> hosts;
  for (const auto& one : ranks) {
    hosts.push_back(one.host);
  }
  Repetition result{Repetition::Verdict::persistent, {guilty.begin(), guilty.end()}, ""};
  const bool several = result.ranks.size() > 1;
  const auto first = std::find_if(found.begin(), found.end(), [&](const Mismatch& one) {
    return copies.contains(one.copy) || copies.contains(one.other_copy);
  });
  const bool is_own = copies.contains(first->copy);
  result.text = "the same numbers again, and " + named(result.ranks, hosts) +
                (several ? ", or one of them, compute" : " computes") +
                formatted(
                    " others than another rank from the same data and weights (%.4g, there %.4g), "
                    "each time (persistent)",
                    is_own ? first->number : first->other_number,
                    is_own ? first->other_number : first->number
                );
  return result;
}

Repetition exchange_microbatches(
    const Passes& passes,
    const Ranks& ranks,
    std::span<const Batch> own,
    std::span<const Batch> next,
    const StepOptions& options
) {
  const Mesh& mesh = passes.mesh;
  if (mesh.size(MeshAxis::dp) == 1 || mesh.size(MeshAxis::ep) > 1) {
    return {
        Repetition::Verdict::same,
        {},
        "the same numbers again; there is no other rank that could compute them"};
  }
  const OwnNumbers mine = run_alone(passes, own, options);
  const OwnNumbers others = run_alone(passes, next, options);
  std::vector<ExchangedNumbers> all;
  for (const std::string& text : together(ranks, [&] {
         std::string words =
             host_name() + " " + std::to_string(mesh.coordinate(MeshAxis::dp)) + " ";
         for (const MeshAxis axis : {MeshAxis::pp, MeshAxis::cp, MeshAxis::tp}) {
           words += std::to_string(mesh.coordinate(axis)) + ".";
         }
         for (const double number : {mine.loss, mine.gradients, others.loss, others.gradients}) {
           words += " " + exact_text(number);
         }
         return words;
       })) {
    std::istringstream words(text);
    ExchangedNumbers one;
    words >> one.host >> one.copy >> one.place;
    one.own = {number_in(words), number_in(words)};
    one.next = {number_in(words), number_in(words)};
    all.push_back(std::move(one));
  }
  return compare_exchanged(all);
}

void share_state(Weights& weights, Gradients& gradients) {
  const at::NoGradGuard no_grad;
  const Group& copies = gradients.mesh().group(MeshAxis::dp);
  for (const auto& stored : weights.stored()) {
    if (gradients.zero() == 0 && stored.data.numel() > 0) {
      const at::Tensor shared = copies.index() == 0
                                    ? stored.data.contiguous().clone()
                                    : at::zeros(stored.data.sizes(), stored.data.options());
      copies.all_reduce(shared);
      stored.data.copy_(shared);
    }
  }
  weights.publish();
  gradients.share_parameters();
  gradients.wait_for_all();
}

} // namespace mh
