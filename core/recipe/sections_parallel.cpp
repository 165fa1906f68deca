#include "core/recipe/pipeline_layout.hpp"
#include "core/recipe/sections.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace mh {

const Fields<Recipe::Parallel>& parallel_fields() {
  using Parallel = Recipe::Parallel;
  static const Fields<Parallel> fields = [] {
    Fields<Parallel> f;
    f.add("tensor", &Parallel::tensor, "tensor-parallel degree").at_least(1);
    f.add("sequence", &Parallel::sequence, "split the sequence between tensor-parallel regions");
    f.add("pipeline", &Parallel::pipeline, "pipeline stages").at_least(1);
    f.add("context", &Parallel::context, "context-parallel degree").at_least(1);
    f.add("expert", &Parallel::expert, "expert-parallel degree, over the ranks of a stage")
        .at_least(1);
    f.add("expert_tensor", &Parallel::expert_tensor, "tensor-parallel degree of experts")
        .at_least(1);
    f.add("data", &Parallel::data, "data-parallel degree; auto: as many as the ranks allow")
        .at_least(1)
        .one_of({"auto"});
    f.add(
         "zero",
         &Parallel::zero,
         "split over data-parallel ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights "
         "too, which each block gathers before it runs"
    )
        .range(0, 3);
    f.add("schedule", &Parallel::schedule, "pipeline schedule");
    f.add("virtual_stages", &Parallel::virtual_stages, "chunks of the model on each pipeline stage")
        .at_least(1);
    f.add(
         "context_method",
         &Parallel::context_method,
         "how attention reaches tokens of other context-parallel ranks: keys and values passed on "
         "in a ring, gathered, or heads exchanged for tokens (all_to_all, Ulysses)"
    )
        .one_of({"ring", "all_gather", "all_to_all"});
    f.add(
         "expert_dispatch",
         &Parallel::expert_dispatch,
         "how tokens reach experts of other ranks: each is sent to those it chose (all_to_all), or "
         "all are gathered"
    )
        .one_of({"all_to_all", "all_gather"});
    f.add(
        "pipeline_layout",
        &Parallel::pipeline_layout,
        "which layers lie in which chunk of the pipeline; balanced: by their cost, the head's "
        "counted; even: as many in each; or written out, such as embed+3|4|4|3+head"
    );
    f.check("pipeline_layout", [](const Parallel& p) -> std::string {
      if (is_layout_word(p.pipeline_layout)) {
        return "";
      }
      const auto chunks = parse_layout(p.pipeline_layout);
      if (!chunks) {
        return "\"" + p.pipeline_layout +
               "\" is no layout, expected balanced, even, or layers between bars from embed to "
               "head, such as \"embed+3|4|4|3+head\"";
      }
      const auto found = static_cast<int64_t>(chunks->size());
      const int64_t expected = p.pipeline * p.virtual_stages;
      return found == expected
                 ? ""
                 : "\"" + p.pipeline_layout + "\" has " + std::to_string(found) +
                       " chunks, expected parallel.pipeline " + std::to_string(p.pipeline) +
                       " times parallel.virtual_stages " + std::to_string(p.virtual_stages) +
                       " = " + std::to_string(expected);
    });
    f.add(
         "bucket_size",
         &Parallel::bucket_size,
         "gradients whose sum over ranks starts together, as soon as the backward pass has made "
         "them"
    )
        .at_least(1)
        .unit("elements");
    f.add("reduce_dtype", &Parallel::reduce_dtype, "format in which gradients travel to their sums")
        .one_of({"fp32", "bf16"})
        .must_stay();
    f.add(
        "overlap",
        &Parallel::overlap,
        "gradients are reduced and weights gathered while passes run; false: one after the other"
    );
    f.add("order", &Parallel::order, "mesh axes from the fastest to the slowest");
    f.check("order", [](const Parallel& p) -> std::string {
      std::vector<std::string> axes;
      for (size_t begin = 0; begin <= p.order.size();) {
        const size_t end = std::min(p.order.find('-', begin), p.order.size());
        axes.push_back(p.order.substr(begin, end - begin));
        begin = end + 1;
      }
      std::sort(axes.begin(), axes.end());
      return axes == std::vector<std::string>{"cp", "dp", "ep", "pp", "tp"}
                 ? ""
                 : "\"" + p.order +
                       "\" is no order of the mesh axes, expected each of tp, cp, ep, dp, pp "
                       "once, such as \"tp-cp-ep-dp-pp\"";
    });
    return f;
  }();
  return fields;
}

} // namespace mh
