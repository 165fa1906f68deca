#include "core/model/labels.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"
#include "tiny.hpp"

#include <ATen/ops/equal.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

TEST_CASE("a step's samples go to microbatches and data ranks in Megatron's order") {
  const tiny::Numbers corpus;
  const mh::BatchLayout layout{
      .seq = tiny::kSeq, .micro = 2, .microbatches = 3, .data_ranks = 2, .data_rank = 1};
  CHECK(layout.global() == 12);
  const auto batches = mh::load_batches(corpus, mh::Split::train, 24, layout);
  REQUIRE(batches.size() == 3);
  CHECK(batches[0].samples == std::vector<int64_t>{26, 27});
  CHECK(batches[2].samples == std::vector<int64_t>{34, 35});
  CHECK(batches[0].batch == 4);
  const auto& tokens = batches[1].arrays.at("tokens");
  CHECK(tokens.sizes().vec() == std::vector<int64_t>{tiny::kSeq, 2});
  CHECK(tokens[5][1].item<int64_t>() == (31 * 7 + 5 * 3) % tiny::kVocab);
  CHECK((batches[1].arrays.at("loss_mask").scalar_type() == at::kFloat));
}

TEST_CASE("prefetching gives the same batches, also out of turn") {
  const tiny::Numbers corpus;
  const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 2, .microbatches = 2};
  for (const int64_t steps : {0, 1, 3}) {
    mh::Prefetcher data(
        corpus, mh::Split::train, [&](int64_t) { return layout; }, steps
    );
    int64_t left = 5;
    for (const int64_t first : {0, 4, 8, 20, 24, 4}) {
      const auto fetched = data.get(first, left--);
      const auto direct = mh::load_batches(corpus, mh::Split::train, first, layout);
      REQUIRE(fetched.size() == direct.size());
      for (size_t m = 0; m < direct.size(); ++m) {
        CHECK(fetched[m].samples == direct[m].samples);
        CHECK(at::equal(fetched[m].arrays.at("labels"), direct[m].arrays.at("labels")));
      }
    }
  }
}

TEST_CASE("so many threads read ahead, in the order of steps") {
  class Watched : public tiny::Numbers {
  public:
    [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
      const int now = ++active;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      --active;
      return Numbers::sample(split, index);
    }

    mutable std::atomic<int> active{}, most{};
  };

  const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 1, .microbatches = 1};
  for (const int threads : {1, 2}) {
    const Watched corpus;
    {
      mh::Prefetcher data(
          corpus, mh::Split::train, [&](int64_t) { return layout; }, 5, threads
      );
      for (int64_t first = 0; first < 8; ++first) {
        const auto batches = data.get(first, 8 - first);
        CHECK(
            batches[0].samples ==
            mh::load_batches(tiny::Numbers(), mh::Split::train, first, layout)[0].samples
        );
      }
    }
    CHECK(corpus.most <= threads + 1); // the first is read by who asks
  }
}

TEST_CASE("no step is read that is not asked for, and none twice") {
  class Counted : public tiny::Numbers {
  public:
    [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
      ++times.at(static_cast<size_t>(index));
      return Numbers::sample(split, index);
    }

    mutable std::array<std::atomic<int>, 16> times{};
  };

  const Counted corpus;
  const mh::BatchLayout layout{.seq = tiny::kSeq};
  {
    mh::Prefetcher data(
        corpus, mh::Split::train, [&](int64_t) { return layout; }, 4
    );
    for (int64_t step = 0; step < 10; ++step) {
      (void)data.get(step, 9 - step);
    }
  }
  for (size_t i = 0; i < corpus.times.size(); ++i) {
    CHECK(corpus.times[i] == (i < 10 ? 1 : 0));
  }
}

TEST_CASE("labels that count lie in the vocabulary, which is seen before a device has them") {
  class Masked : public tiny::Numbers {
  public:
    [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
      auto sample = Numbers::sample(split, index);
      std::get<std::vector<int64_t>>(sample.at("labels"))[3] = index == 4 ? -1 : tiny::kVocab;
      std::get<std::vector<float>>(sample.at("loss_mask"))[3] = index < 2 ? 0.0F : 1.0F;
      return sample;
    }
  };

  const Masked corpus;
  const auto end = [&](int64_t sample) {
    const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 1};
    const auto batches = mh::load_batches(corpus, mh::Split::train, sample, layout);
    const mh::Batch batch = mh::to_device(batches.front(), at::kCPU);
    const auto& arrays = batch.arrays;
    const at::Tensor &labels = arrays.at("labels"), &mask = arrays.at("loss_mask");
    CHECK(!mh::known_labels_end(batch, labels.clone(), mask)); // not the batch's own
    return mh::known_labels_end(batch, labels, mask).value();
  };
  CHECK(end(1) <= tiny::kVocab); // the one outside does not count
  CHECK(end(2) == tiny::kVocab + 1);
  for (const int64_t sample : {2, 4}) {
    CHECK_NOTHROW(mh::require_labels(end(sample), end(sample)));
    CHECK_THROWS_WITH_AS(
        mh::require_labels(end(sample), tiny::kVocab),
        doctest::Contains("labels of this batch lie outside the model's vocabulary of"),
        mh::Error
    );
  }
}

TEST_CASE("the host knows whole samples' documents, of which a rank's arrays are a part") {
  class Packed : public tiny::Numbers {
  public:
    [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
      auto sample = Numbers::sample(split, index);
      std::vector<int64_t> ids(tiny::kSeq, 4);
      ids[0] = ids[1] = 9;
      ids.back() = index == 2 ? 9 : 4; // which goes on after another document
      sample["segments"] = ids;
      return sample;
    }
  };

  const Packed corpus;
  mh::BatchLayout layout{
      .seq = tiny::kSeq,
      .micro = 2,
      .tokens =
          [](int64_t) {
            return std::vector<mh::TokenRun>{{3, 3}};
          },
      .arrays = mh::decoder_arrays(tiny::kSeq)};
  layout.arrays.push_back({"segments", mh::ArraySpec::Type::int64, mh::axis::seq, tiny::kSeq});
  const auto batch = mh::load_batches(corpus, mh::Split::train, 0, layout).front();
  CHECK(batch.arrays.at("segments").size(0) == 3);
  const std::vector<mh::DocumentStart> documents{{0, 0, 9}, {0, 2, 4}, {1, 0, 9}, {1, 2, 4}};
  CHECK((batch.documents.at("segments") == documents));
  CHECK(mh::load_batches(corpus, mh::Split::train, 2, layout).front().documents.empty());
}

TEST_CASE("arrays further on end with their documents, before ranks take their tokens") {
  class Packed : public tiny::Numbers {
  public:
    [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
      auto sample = Numbers::sample(split, index);
      for (size_t i = 0; i < tiny::kSeq; ++i) {
        std::get<std::vector<int64_t>>(sample.at("tokens"))[i] = static_cast<int64_t>(i) + 10;
      }
      std::vector<int64_t> ids(tiny::kSeq, 4);
      ids[0] = ids[1] = ids[2] = 9;
      sample["segments"] = ids;
      return sample;
    }
  };

  mh::BatchLayout layout{
      .seq = tiny::kSeq,
      .micro = 1,
      .tokens =
          [](int64_t) {
            return std::vector<mh::TokenRun>{{1, 4}};
          },
      .arrays = mh::decoder_arrays(tiny::kSeq),
      .shifted = {
          {"mtp_2_tokens", "tokens", 2},
          {"mtp_2_loss_mask", "loss_mask", 2},
          {"far", "tokens", tiny::kSeq},
          {"none", "absent", 1}}};
  layout.arrays.push_back({"segments", mh::ArraySpec::Type::int64, mh::axis::seq, tiny::kSeq});
  const auto batch = mh::load_batches(Packed(), mh::Split::train, 0, layout).front();
  const auto numbers = [&](const char* name) {
    const auto column = batch.arrays.at(name).to(at::kLong).contiguous();
    return std::vector<int64_t>(
        column.data_ptr<int64_t>(), column.data_ptr<int64_t>() + column.numel()
    );
  };
  // The rank has tokens 1 to 4; token 2 is its document's last one, and no label from token 6 on counts.
  CHECK(numbers("mtp_2_tokens") == std::vector<int64_t>{0, 0, 15, 16});
  CHECK(numbers("mtp_2_loss_mask") == std::vector<int64_t>{0, 0, 1, 0});
  CHECK(numbers("far") == std::vector<int64_t>{0, 0, 0, 0});
  CHECK_FALSE(batch.arrays.contains("none"));
}

TEST_CASE("samples whose arrays differ cannot be stacked") {
  class Uneven : public tiny::Numbers {
  public:
    [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
      auto sample = Numbers::sample(split, index);
      if (index == 1) {
        std::get<std::vector<int64_t>>(sample.at("tokens")).pop_back();
      } else if (index == 3) {
        sample.erase("labels");
      } else if (index == 5) {
        sample.emplace("extra", std::vector<float>(tiny::kSeq));
      } else if (index >= 6) {
        throw mh::Error("token 900 is outside the vocabulary", "", mh::exit_code::data);
      }
      return sample;
    }
  };

  const Uneven corpus;
  const mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 2, .microbatches = 1};
  for (const int64_t first : {0, 2, 4, 6}) {
    try {
      (void)mh::load_batches(corpus, mh::Split::train, first, layout);
      FAIL("no error");
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::data);
    }
  }
  // an error in the background reaches the step that needs the samples
  mh::Prefetcher broken(corpus, mh::Split::train, [](int64_t) {
    return mh::BatchLayout{.seq = tiny::kSeq, .micro = 1};
  });
  CHECK_NOTHROW((void)broken.get(5, 1));
  CHECK_THROWS_AS((void)broken.get(6, 1), mh::Error);
}

namespace {

using enum mh::ArraySpec::Type;

/// Samples with an array that is no token's.
class Paired : public tiny::Numbers {
public:
  [[nodiscard]] mh::Sample sample(mh::Split split, int64_t index) const override {
    auto sample = Numbers::sample(split, index);
    sample.emplace("next", std::vector<int64_t>{index % 2});
    return sample;
  }
};

std::vector<mh::ArraySpec> paired_arrays() {
  auto arrays = mh::decoder_arrays(tiny::kSeq);
  arrays.push_back({"next", int64, mh::LogicalAxis{"pair"}, 1});
  return arrays;
}

std::string refused(const std::vector<mh::ArraySpec>& arrays) {
  try {
    (void)mh::load_batches(
        Paired(), mh::Split::train, 3, {.seq = tiny::kSeq, .micro = 1, .arrays = arrays}
    );
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::data);
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("samples that are not what their corpus declares are refused by array") {
  const std::string which = "sample 3 of the corpus is not what it declares: ";
  CHECK(refused(paired_arrays()).empty());
  CHECK(refused(mh::decoder_arrays(tiny::kSeq)) == which + "`next` is int64 [1], and not declared");
  auto arrays = paired_arrays();
  arrays.back().length = 2;
  CHECK(refused(arrays) == which + "`next` is int64 [1], declared int64 [2]");
  arrays.back() = {"next", float32, mh::LogicalAxis{"pair"}, 1};
  CHECK(refused(arrays) == which + "`next` is int64 [1], declared float32 [1]");
  arrays.back() = {"segments", int64, mh::axis::seq, tiny::kSeq};
  CHECK(refused(arrays) == which + "`segments` is declared, and not there");
}

TEST_CASE("ranks that split the sequence get their tokens of arrays along it, others whole") {
  auto arrays = paired_arrays();
  const auto tokens = [](int64_t) { return std::vector<mh::TokenRun>{{2, 3}}; };
  mh::BatchLayout layout{.seq = tiny::kSeq, .micro = 2, .tokens = tokens, .arrays = arrays};
  const auto batch = mh::load_batches(Paired(), mh::Split::train, 0, layout).front();
  CHECK(batch.arrays.at("tokens").sizes().vec() == std::vector<int64_t>{3, 2});
  CHECK(batch.arrays.at("next").sizes().vec() == std::vector<int64_t>{1, 2});
}

TEST_CASE("arrays of another sequence have its length, and ranks get their tokens of it") {
  const mh::ArraySpec read{"encoder_tokens", int64, mh::axis::seq, 8, "encoder"};

  class Encoded : public Paired {
    [[nodiscard]] mh::Sample sample(mh::Split, int64_t) const override {
      return {{"encoder_tokens", std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}}};
    }
  };

  const auto tokens = [](int64_t length) {
    return std::vector<mh::TokenRun>{{length / 2, length / 2}};
  };
  const mh::BatchLayout layout{
      .seq = 4, .tokens = tokens, .sequences = {{"encoder", 8}}, .arrays = {read}};
  CHECK(layout.tokens_per_sample() == 12);
  const auto batch = mh::load_batches(Encoded(), mh::Split::train, 0, layout).front();
  CHECK(batch.sequences.at("encoder") == 8);
  CHECK(batch.arrays.at("encoder_tokens").sum().item<int64_t>() == 4 + 5 + 6 + 7);
}

TEST_CASE("a mask of which a share counts: blank samples have it, and batches say where it counts"
) {
  auto declared = mh::decoder_arrays(400);
  std::ranges::find(declared, "loss_mask", &mh::ArraySpec::name)->share = 0.15;
  const auto corpus = mh::blank_samples(declared);
  // A rank of the sequence's second half.
  const auto tokens = [](int64_t length) {
    return std::vector<mh::TokenRun>{{length / 2, length / 2}};
  };
  const mh::BatchLayout layout{.seq = 400, .micro = 2, .tokens = tokens, .arrays = declared};
  const auto batch = mh::load_batches(*corpus, mh::Split::train, 0, layout).front();
  const at::Tensor mask = batch.arrays.at("loss_mask").flatten();
  CHECK(mask.numel() == 400);
  CHECK(mask.sum().item<double>() == 60); // 30 of each sample
  const at::Tensor& counted = batch.counted.at("loss_mask");
  CHECK(counted.numel() == 64); // 4 that do not count
  CHECK(mask.index_select(0, counted).sum().item<double>() == 60);
  CHECK(std::get<0>(counted.sort()).diff().min().item<int64_t>() > 0); // each once
  CHECK(mh::load_batches(
            *corpus, mh::Split::train, 0, {.seq = 400, .arrays = mh::decoder_arrays(400)}
  )
            .front()
            .counted.empty());
}

TEST_CASE("a blank sample is what is declared") {
  const auto sample = mh::blank_sample(paired_arrays());
  CHECK(mh::array_difference(paired_arrays(), sample).empty());
  CHECK(std::get<std::vector<float>>(sample.at("loss_mask")).front() == 1);
}
