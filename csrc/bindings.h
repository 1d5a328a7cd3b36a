// Shared by all bindings: addresses as Python passes them, and how a kernel is given a name.
#pragma once
#include <nanobind/nanobind.h>

#include "kernels.h"

namespace gossamer {

namespace nb = nanobind;

using Address = uintptr_t;

template <typename T>
inline T* at(Address a) {
  return reinterpret_cast<T*>(a);
}
inline Csr csr(Address rowptr, Address col, int64_t num_dst) {
  return {at<int64_t>(rowptr), at<int32_t>(col), num_dst};
}
inline EdgeWeight weight(Address value, Address src_scale, Address dst_scale, int64_t heads, Address keep = 0) {
  return {at<float>(value), at<float>(src_scale), at<float>(dst_scale), heads, at<uint8_t>(keep)};
}

template <typename F>
void def(nb::module_& m, const char* name, F f) {
  m.def(name, f, nb::call_guard<nb::gil_scoped_release>());
}

void define_sampling(nb::module_& m);      // bindings_sampling.cpp
void define_int8(nb::module_& m);          // bindings_int8.cpp
void define_integer(nb::module_& m);       // bindings_integer.cpp
void define_features(nb::module_& m);      // bindings_features.cpp
void define_epilogue(nb::module_& m);      // bindings_epilogue.cpp
void define_weight_grads(nb::module_& m);  // bindings_epilogue.cpp

}  // namespace gossamer
