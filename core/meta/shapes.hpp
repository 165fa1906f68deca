#pragma once

/// Shape functions, strides included, for operators that LibTorch has no Meta kernel for in C++.

namespace torch {
class Library;
}

namespace mh::ops {

void register_meta_shapes(torch::Library& aten);
void register_meta_elementwise(torch::Library& aten); ///< meta_elementwise.cpp

} // namespace mh::ops
