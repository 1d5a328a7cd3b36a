// Bindings of sample_neighbours.cpp.
#include "bindings.h"

namespace gossamer {
namespace {

Sampling sampling(Address rowptr, Address col, int64_t n, Address weight, bool replace, uint64_t seed) {
  return {csr(rowptr, col, n), at<float>(weight), replace, seed};
}

}  // namespace

void define_sampling(nb::module_& m) {
  def(m, "count_sampled",
      [](Address rowptr, Address col, int64_t n, Address weight, bool replace, uint64_t seed, Address rows,
         int64_t count, int64_t fanout, Address out_rowptr, int threads) {
        return count_sampled(sampling(rowptr, col, n, weight, replace, seed), at<int64_t>(rows), count, fanout,
                             at<int64_t>(out_rowptr), threads);
      });
  def(m, "sample_edges",
      [](Address rowptr, Address col, int64_t n, Address weight, bool replace, uint64_t seed, Address rows,
         int64_t count, int64_t fanout, Address out_rowptr, Address source, Address edge, int threads) {
        sample_edges(sampling(rowptr, col, n, weight, replace, seed), at<int64_t>(rows), count, fanout,
                     at<int64_t>(out_rowptr), at<int32_t>(source), at<int64_t>(edge), threads);
      });
  def(m, "number_seeds", [](Address seeds, int64_t count, Address n_id, Address table) {
    return number_seeds(at<int64_t>(seeds), count, at<int64_t>(n_id), at<uint32_t>(table));
  });
  def(m, "number_sources",
      [](Address col, int64_t count, int64_t known, Address n_id, Address table, bool more, Address room, int threads) {
        return number_sources(at<int32_t>(col), count, known, at<int64_t>(n_id), at<uint32_t>(table), more,
                              at<int32_t>(room), threads);
      });
}

}  // namespace gossamer
