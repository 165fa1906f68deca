// A made-up task: a few random tokens, then the same again. Only the second half counts in the
// loss: it falls to zero once the model looks back.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/corpus.hpp>
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>
#include <megahost/shuffle.hpp>

#include <cmath>

namespace {

class @Name@ : public mh::Corpus {
public:
  struct Config {
    int64_t samples = 10000;
  };

  // Each field is an option of the recipe's section: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("samples", &Config::samples, "sequences in an epoch, over all splits").at_least(1);
  }

  // The arrays of every sample, known before any data are read: plans go by them. These are the
  // arrays that decoders read; another array is one more {"name", mh::ArraySpec::Type::int64, axis,
  // length}.
  static std::vector<mh::ArraySpec> arrays(const Config&, const Args& args) {
    return mh::decoder_arrays(args.seq_length);
  }

  @Name@(const Config& config, const Args& args)
      : config_(config)
      , args_(args) {
    if (args.vocab < 1) {
      throw mh::Error(
          "the corpus @name@ has no vocabulary to draw from",
          "set model.vocab, or a tokenizer",
          mh::exit_code::data
      );
    }
  }

  int64_t size(mh::Split split) const override {
    const double share = args_.split[static_cast<size_t>(split)];
    return static_cast<int64_t>(std::ceil(share * static_cast<double>(config_.samples)));
  }

  // A pure function of the index: called from any thread, in any order, after any restart.
  mh::Sample sample(mh::Split split, int64_t index) const override {
    const uint64_t part = mh::mix(args_.seed + static_cast<uint64_t>(split));
    const uint64_t key = mh::mix(part + static_cast<uint64_t>(index % size(split)));
    const int64_t half = (args_.seq_length + 1) / 2;
    const auto token = [&](int64_t place) {
      const uint64_t word = mh::mix(key + static_cast<uint64_t>(place % half));
      return static_cast<int64_t>(word % static_cast<uint64_t>(args_.vocab));
    };
    std::vector<int64_t> tokens, labels;
    std::vector<float> mask;
    for (int64_t place = 0; place < args_.seq_length; ++place) {
      tokens.push_back(token(place));
      labels.push_back(token(place + 1));
      mask.push_back(place + 1 >= half ? 1.0F : 0.0F);
    }
    return {{"tokens", tokens}, {"labels", labels}, {"loss_mask", mask}};
  }

  std::string summary() const override {
    return "@name@: " + std::to_string(config_.samples) + " sequences to repeat";
  }

private:
  Config config_;
  Args args_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a corpus", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "random tokens, and the same again");
})
