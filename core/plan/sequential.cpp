#include "core/plan/sequential.hpp"

#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;

class Sequential : public PipelineSchedule {
public:
  Sequential(InstructionLists lists, ChunkOrder order)
      : lists_(std::move(lists))
      , order_(order) {}

  [[nodiscard]] std::vector<Instruction> instructions(int64_t stage) const override {
    return lists_[static_cast<size_t>(stage)];
  }

  [[nodiscard]] ChunkOrder order() const override { return order_; }

private:
  InstructionLists lists_;
  ChunkOrder order_;
};

} // namespace

InstructionLists sequential_lists(const PipelineSchedule::Args& args, bool splits) {
  std::vector<Instruction> list;
  const auto chunks = static_cast<int32_t>(args.virtual_stages);
  for (int32_t m = 0; m < static_cast<int32_t>(args.microbatches); ++m) {
    for (int32_t c = 0; c < chunks; ++c) {
      list.push_back({Op::forward, c, m});
    }
    for (int32_t c = chunks; c-- > 0;) {
      list.push_back({splits ? Op::backward_input : Op::backward, c, m});
      if (splits) {
        list.push_back({Op::backward_weight, c, m});
      }
    }
  }
  return with_transfers(args, InstructionLists(static_cast<size_t>(args.stages), list));
}

Pipeline sequential_pipeline(const PipelineSchedule::Args& args, bool splits) {
  return {
      [splits, order = args.order](PipelineSchedule::Args any) {
        any.order = order;
        return std::make_unique<Sequential>(sequential_lists(any, splits), order);
      },
      args};
}

} // namespace mh
