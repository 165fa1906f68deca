#pragma once
/// Every test of `plugins check`, by the file that holds it; the table is in tests.cpp.

#include "core/conformance/check.hpp"

namespace mh::check {

// files.cpp
void entry_only_export(const Case& c);
void pin_present(const Case& c);
void no_static_libstdcxx(const Case& c);
void no_fast_math(const Case& c);
void no_rpath_to_torch(const Case& c);
void no_static_torch_ops(const Case& c);
void scan_under_100ms(const Case& c);
void descriptor_consistent(const Case& c);
void double_register(const Case& c);

// options.cpp
void options_roundtrip(const Case& c);
void options_fuzz(const Case& c);
void names_on_errors(const Case& c);

// conditions.cpp
void conditions_known(const Case& c);

// behaviour.cpp
void offers_tried(const Case& c);
void build_twice(const Case& c);
void seed_determinism(const Case& c);
void calls_are_pure(const Case& c);
void no_stdout(const Case& c);

// models.cpp
void forward_shape_and_dtype(const Case& c);
void grad_check(const Case& c);
void state_reproducible(const Case& c);
void meta_device(const Case& c);

// hugging_face.cpp
void hugging_face_names(const Case& c);
void hugging_face_config(const Case& c);

// invariance.cpp
void initial_values(const Case& c);
void layouts_match(const Case& c);
void cached_generation(const Case& c);
void documents_apart(const Case& c);
void recompute_bit_equal(const Case& c);

// parts.cpp
void lowers_a_quadratic(const Case& c);
void values_finite(const Case& c);
void decode_encode(const Case& c);
void ids_in_vocabulary(const Case& c);
void arrays_as_declared(const Case& c);
void instructions_complete(const Case& c);
void one_rank_unchanged(const Case& c);
void world_consistent(const Case& c);
void holds_tensors(const Case& c);

// objects.cpp
void objects_kept(const Case& c);

// checkpoints.cpp
void checkpoint_round_trip(const Case& c);
void checkpoint_crash(const Case& c);

// shards.cpp
void shards_update_alike(const Case& c);

} // namespace mh::check
