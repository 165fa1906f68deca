#include "megahost/mesh.hpp"

#include "core/mesh/threads.hpp"
#include "megahost/error.hpp"
#include "megahost/placement.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <doctest/doctest.h>

#include <mutex>
#include <set>

namespace mesh_tests {

using namespace mh;

namespace {

const MakeBackend kNoBackend = [](const auto&, const auto&, int64_t) {
  return c10::intrusive_ptr<c10d::Backend>();
};

std::vector<int64_t> members(const MeshShape& shape, int64_t rank, MeshAxis axis) {
  return Mesh(shape, rank, kNoBackend).group(axis).members();
}

} // namespace

TEST_CASE("ranks lie in megatron's order: tp fastest, then cp, dp, pp") {
  const MeshShape shape{.pp = 2, .dp = 2, .cp = 2, .tp = 2};
  CHECK(members(shape, 5, MeshAxis::tp) == std::vector<int64_t>{4, 5});
  CHECK(members(shape, 5, MeshAxis::cp) == std::vector<int64_t>{5, 7});
  CHECK(members(shape, 5, MeshAxis::dp) == std::vector<int64_t>{1, 5});
  CHECK(members(shape, 5, MeshAxis::pp) == std::vector<int64_t>{5, 13});
}

TEST_CASE("experts are sharded over the dense ranks and never multiply the world") {
  const MeshShape shape{.pp = 2, .dp = 8, .ep = 4};
  CHECK(shape.world() == 16);
  CHECK(shape.edp() == 2);
  CHECK(members(shape, 5, MeshAxis::ep) == std::vector<int64_t>{4, 5, 6, 7});
  CHECK(members(shape, 5, MeshAxis::edp) == std::vector<int64_t>{1, 5});
  CHECK(members(shape, 5, MeshAxis::dp) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("every rank is in exactly one group of each axis") {
  const MeshShape shape{.pp = 2, .dp = 4, .cp = 1, .tp = 2, .ep = 2, .etp = 2};
  for (const auto axis : kAllMeshAxes) {
    std::set<std::vector<int64_t>> groups;
    size_t total = 0;
    for (int64_t rank = 0; rank < shape.world(); ++rank) {
      const auto group = members(shape, rank, axis);
      CHECK(std::find(group.begin(), group.end(), rank) != group.end());
      if (groups.insert(group).second) {
        total += group.size();
      }
    }
    CHECK(total == static_cast<size_t>(shape.world()));
  }
}

TEST_CASE("degrees that do not fit one another are refused in a sentence") {
  CHECK_THROWS_WITH_AS(
      Mesh({.dp = 3, .ep = 2}, 0, kNoBackend), doctest::Contains("expert 2 does not divide"), Error
  );
  CHECK_THROWS_WITH_AS(Mesh({.tp = 0}, 0, kNoBackend), doctest::Contains("degree 0"), Error);
  CHECK_THROWS_WITH_AS(
      Mesh({}, 0, kNoBackend, "tp-dp"), doctest::Contains("each axis once"), Error
  );
  CHECK_THROWS_WITH_AS(Mesh({}, 0, kNoBackend, "tp-xp-cp-dp-pp"), doctest::Contains("`xp`"), Error);
}

TEST_CASE("collectives of ranks as threads") {
  run_ranks({.tp = 4}, [](const Mesh& mesh) {
    const auto& group = mesh.group(MeshAxis::tp);
    const at::Tensor mine = at::arange(4).to(at::kDouble) + static_cast<double>(10 * group.index());
    at::Tensor sum = mine.clone();
    group.all_reduce(sum);
    CHECK(at::equal(sum, at::arange(4).to(at::kDouble) * 4.0 + 60.0));
    at::Tensor top = mine.clone();
    group.all_reduce(top, Reduce::max);
    CHECK(at::equal(top, at::arange(4).to(at::kDouble) + 30.0));
    const at::Tensor all = group.all_gather(mine.unsqueeze(0), 0);
    CHECK(at::equal(all.select(0, 2), at::arange(4).to(at::kDouble) + 20.0));
    CHECK(group.all_gather(mine.unsqueeze(0), 1).sizes() == at::IntArrayRef({1, 16}));
    CHECK(at::equal(group.reduce_scatter(mine, 0), group.slice(sum, 0)));
    const at::Tensor whole = mine.clone();
    (void)group.start_reduce_scatter(whole, 0, group.slice(whole, 0)).wait(); // in place
    CHECK(at::equal(group.slice(whole, 0), group.slice(sum, 0)));
    const at::Tensor turned = group.all_to_all(mine.unsqueeze(1), 0, 1); // [4, 1] -> [1, 4]
    CHECK(turned.sizes() == at::IntArrayRef({1, 4}));
    CHECK(turned[0][2].item().toDouble() == 20.0 + static_cast<double>(group.index()));
  });
}

TEST_CASE("a rank that throws releases the others and its own error comes out") {
  CHECK_THROWS_WITH_AS(
      run_ranks(
          {.tp = 3},
          [](const Mesh& mesh) {
            if (mesh.rank() == 1) {
              throw Error("rank 1 is out of paper");
            }
            at::Tensor x = at::full({1}, 1.0);
            mesh.group(MeshAxis::tp).all_reduce(x);
          }
      ),
      "rank 1 is out of paper",
      Error
  );
}

TEST_CASE("one placement rule: features, then tokens, then between, each mesh axis once per tensor"
) {
  Rules rules;
  for (const auto logical : {axis::heads, axis::kv_heads, axis::mlp, axis::vocab}) {
    rules.features.push_back({logical, MeshAxis::tp});
  }
  rules.tokens = {{axis::batch, MeshAxis::dp}, {axis::seq, MeshAxis::cp}};
  rules.between = {{axis::seq, MeshAxis::tp}};
  const Mesh mesh({.dp = 2, .cp = 2, .tp = 4}, 0, kNoBackend);
  const auto place = [&](Axis last, Tier upto) {
    return to_string(rules.place({{axis::seq, 16}, {axis::batch, 4}, last}, mesh, upto));
  };
  CHECK(place({axis::embed, 64}, Tier::between) == "dp: split 1, cp: split 0, tp: split 0");
  CHECK(place({axis::embed, 64}, Tier::tokens) == "dp: split 1, cp: split 0");
  CHECK(place({axis::heads, 8, 8}, Tier::between) == "dp: split 1, cp: split 0, tp: split 2");
  CHECK(place({axis::kv_heads, 2, 8}, Tier::features) == "tp: replicated");
  CHECK_THROWS_WITH_AS(
      place({axis::kv_heads, 3, 8}, Tier::features),
      doctest::Contains("`kv_heads` of size 3"),
      Error
  );
  CHECK_THROWS_WITH_AS(
      (void)rules.place({{axis::seq, 16}, {axis::batch, 3}}, mesh, Tier::tokens),
      doctest::Contains("`batch` of size 3"),
      Error
  );
}

TEST_CASE("conversions: each is the transpose of its own gradient") {
  // For linear maps y = A x summed over ranks, <w, A x> = <Aᵗ w, x>, counted over the global
  // tensors.
  const Along identical{PlacementType::identical, 0};
  const Along replicated{PlacementType::replicated, 0};
  const Along split0{PlacementType::split, 0};
  const Along split1{PlacementType::split, 1};
  const Along partial{PlacementType::partial, 0};
  const auto count = [](Along along) {
    return along == Along{PlacementType::identical, 0} ? 2.0 : 1.0;
  };
  for (const auto& [a, b] :
       {std::pair{split0, replicated},
        {split0, identical},
        {identical, split0},
        {partial, identical},
        {partial, replicated},
        {partial, split1},
        {replicated, split1},
        {split0, split1},
        {identical, replicated}}) {
    double left = 0;
    double right = 0;
    std::mutex mutex;
    run_ranks({.tp = 2}, [&, a = a, b = b](const Mesh& mesh) {
      Placement from;
      Placement to;
      from[MeshAxis::tp] = a;
      to[MeshAxis::tp] = b;
      const auto value = [&](Along along, double base) {
        at::Tensor whole = (at::arange(24).to(at::kDouble).view({4, 6}) * 0.37 + base).sin();
        if (along.type == PlacementType::split) {
          return mesh.group(MeshAxis::tp).slice(whole, along.dim).contiguous();
        }
        return along.type == PlacementType::partial ? whole * (mesh.rank() == 0 ? 0.3 : 0.7)
                                                    : whole;
      };
      const at::Tensor x = value(a, 0.1);
      const at::Tensor y = convert_forward(x, from, to, mesh);
      // Gradients: the same on all ranks where the target is identical, parts elsewhere.
      const at::Tensor w = b.type == PlacementType::replicated
                               ? value(b, 0.2 + static_cast<double>(mesh.rank()))
                               : value(b, 0.2);
      const at::Tensor dx = convert_backward(w, from, to, mesh);
      const std::scoped_lock lock(mutex);
      left += (w * y).sum().item().toDouble() / count(b);
      // A partial value's gradient is whole on each rank; identical values count once.
      right += (dx * x).sum().item().toDouble() / count(a);
    });
    CAPTURE(static_cast<int>(a.type));
    CAPTURE(static_cast<int>(b.type));
    CHECK(left == doctest::Approx(right).epsilon(1e-12));
  }
}

TEST_CASE("a conversion that no layer may ask for is named") {
  run_ranks({.tp = 2}, [](const Mesh& mesh) {
    Placement from;
    Placement to;
    to[MeshAxis::tp] = {PlacementType::partial, 0};
    CHECK_THROWS_WITH_AS(
        (void)convert_forward(at::arange(4), from, to, mesh),
        doctest::Contains("from (identical) to (tp: partial)"),
        InternalError
    );
  });
}

} // namespace mesh_tests
