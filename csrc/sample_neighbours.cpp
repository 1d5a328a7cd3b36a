// Neighbour sampling from a CSR graph (ops/sample_neighbours.py). Draws are hashes of (seed, node, draw), and local ids
// follow the order of the edges, so nothing depends on which thread does what.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace gossamer {
namespace {

// Random words ----------------------------------------------------------------------------------------------------

inline uint64_t splitmix64(uint64_t x) {
  uint64_t z = x + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The words of one node: a function of the seed, its id and the number of the draw.
struct Words {
  uint64_t state;
  Words(uint64_t seed, int64_t node) : state(splitmix64(splitmix64(seed) + uint64_t(node))) {}
  uint64_t word(int64_t draw) const { return splitmix64(state + uint64_t(draw)); }
  int64_t below(int64_t draw, int64_t n) const {  // uniform in [0, n)
    __extension__ typedef unsigned __int128 Wide;
    return int64_t(Wide(word(draw)) * uint64_t(n) >> 64);
  }
  double unit(int64_t draw) const { return (double(word(draw) >> 12) + 0.5) * 0x1p-52; }  // in (0, 1)
};

// One row ---------------------------------------------------------------------------------------------------------

// Scratch of one thread, reused from row to row.
struct Room {
  std::vector<uint64_t> bits;
  std::vector<std::pair<double, int64_t>> keys;
  std::vector<double> sums;
};

// k of n positions without replacement, ascending, by Floyd's algorithm: draw i is below n - k + i + 1, and a position
// that is taken already is replaced by the largest one, n - k + i. `to` is kept in order while it grows.
void floyd_in_order(const Words& words, int64_t n, int64_t k, int64_t* to) {
  for (int64_t i = 0; i < k; ++i) {
    const int64_t last = n - k + i, drawn = words.below(i, last + 1);
    int64_t at = i;
    while (at > 0 && to[at - 1] > drawn) --at;
    if (at > 0 && to[at - 1] == drawn) {
      to[i] = last;
    } else {
      for (int64_t j = i; j > at; --j) to[j] = to[j - 1];
      to[at] = drawn;
    }
  }
}

// The same for many positions: which are taken is a bit each.
void floyd_by_bits(const Words& words, int64_t n, int64_t k, int64_t* to, std::vector<uint64_t>& bits) {
  bits.assign(size_t((n + 63) / 64), 0);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t last = n - k + i, drawn = words.below(i, last + 1);
    const bool taken = bits[size_t(drawn / 64)] >> (drawn % 64) & 1;
    const int64_t position = taken ? last : drawn;
    bits[size_t(position / 64)] |= uint64_t(1) << (position % 64);
  }
  for (size_t w = 0; w < bits.size(); ++w)
    for (uint64_t left = bits[w]; left; left &= left - 1) *to++ = int64_t(w) * 64 + __builtin_ctzll(left);
}

void sort_few(int64_t* first, int64_t* last) {
  if (last - first > 32) return std::sort(first, last);
  for (int64_t* i = first; i < last; ++i)
    for (int64_t* j = i; j > first && j[-1] > j[0]; --j) std::swap(j[-1], j[0]);
}

// The k positions with the smallest keys -log(u) / weight: successive draws in proportion to the weights that are left.
void smallest_keys(const Words& words, const float* weight, int64_t n, int64_t k, int64_t* to, Room& room) {
  room.keys.clear();
  for (int64_t i = 0; i < n; ++i)
    if (weight[i] > 0) room.keys.emplace_back(-std::log(words.unit(i)) / double(weight[i]), i);
  if (k < int64_t(room.keys.size())) std::nth_element(room.keys.begin(), room.keys.begin() + k, room.keys.end());
  for (int64_t i = 0; i < k; ++i) to[i] = room.keys[size_t(i)].second;
  sort_few(to, to + k);
}

// k positions, each in proportion to its weight, repeats included.
void by_sums(const Words& words, const float* weight, int64_t n, int64_t k, int64_t* to, Room& room) {
  room.sums.resize(size_t(n));
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) room.sums[size_t(i)] = sum += double(weight[i]);
  for (int64_t i = 0; i < k; ++i)
    to[i] = std::upper_bound(room.sums.begin(), room.sums.end(), words.unit(i) * sum) - room.sums.begin();
  sort_few(to, to + k);
}

// The positions in a row of n edges that are taken, ascending; k of them, as count_sampled counted.
void choose(Sampling s, int64_t node, const float* weight, int64_t n, int64_t k, bool all, int64_t* to, Room& room) {
  if (all && !weight) {
    for (int64_t i = 0; i < n; ++i) to[i] = i;
    return;
  }
  if (all) {
    for (int64_t i = 0; i < n; ++i)
      if (weight[i] > 0) *to++ = i;
    return;
  }
  const Words words(s.seed, node);
  if (weight && s.replace) {
    by_sums(words, weight, n, k, to, room);
  } else if (weight) {
    smallest_keys(words, weight, n, k, to, room);
  } else if (s.replace) {
    for (int64_t i = 0; i < k; ++i) to[i] = words.below(i, n);
    sort_few(to, to + k);
  } else if (k > 32 && n / 8 < k * k) {
    floyd_by_bits(words, n, k, to, room.bits);
  } else {
    floyd_in_order(words, n, k, to);
  }
}

constexpr int64_t kAhead = 16;  // rows whose pointers are prefetched

// Which of a row's edges can be drawn: those of positive weight. The first that is no weight, or -1.
int64_t bad_weight(const float* weight, int64_t n, int64_t* positive) {
  *positive = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!(weight[i] >= 0 && weight[i] <= std::numeric_limits<float>::max())) return i;
    *positive += weight[i] > 0;
  }
  return -1;
}

}  // namespace

// Edges that are drawn for each of `rows`: their ends from rowptr[0] on. The first edge with a weight that is negative
// or not finite, or -1.
int64_t count_sampled(Sampling s, const int64_t* rows, int64_t count, int64_t fanout, int64_t* rowptr, int threads) {
  const int64_t grain = s.weight ? 64 : 4096, none = INT64_MAX;
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads * 4, count / grain));
  std::vector<int64_t> bad(size_t(parts), none);
  const auto run = [&](int64_t part) {
    const int64_t first = count * part / parts, last = count * (part + 1) / parts;
    for (int64_t i = first; i < last; ++i) {
      if (i + kAhead < last) __builtin_prefetch(s.graph.rowptr + rows[i + kAhead]);
      const int64_t begin = s.graph.rowptr[rows[i]];
      int64_t n = s.graph.rowptr[rows[i] + 1] - begin;
      if (s.weight) {
        const int64_t at = bad_weight(s.weight + begin, n, &n);
        if (at >= 0) bad[size_t(part)] = std::min(bad[size_t(part)], begin + at);
      }
      rowptr[i + 1] = fanout < 0 || n == 0 ? n : s.replace ? fanout : std::min(n, fanout);
    }
  };
  if (parts == 1 || threads <= 1) {
    for (int64_t part = 0; part < parts; ++part) run(part);
  } else {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t part = 0; part < parts; ++part) run(part);
  }
  for (int64_t i = 0; i < count; ++i) rowptr[i + 1] += rowptr[i];
  const int64_t worst = *std::min_element(bad.begin(), bad.end());
  return worst == none ? -1 : worst;
}

// The edges that count_sampled counted: their sources and, unless null, their positions in the graph, at rowptr[i] of
// both. Columns are gathered a batch of edges after their positions are known and prefetched.
void sample_edges(Sampling s, const int64_t* rows, int64_t count, int64_t fanout, const int64_t* rowptr,
                  int32_t* source, int64_t* edge, int threads) {
  parallel_rows(rowptr, count, s.weight ? 64 : 4, threads, [&](int64_t first, int64_t last) {
    constexpr int64_t kBatch = 128;
    Room room;
    std::vector<int64_t> waiting(size_t(2 * kBatch));
    int64_t held = 0, gathered = rowptr[first];
    const auto gather = [&](int64_t upto) {
      for (int64_t i = 0; i < upto; ++i) source[gathered + i] = s.graph.col[waiting[size_t(i)]];
      if (edge) std::memcpy(edge + gathered, waiting.data(), size_t(upto) * sizeof(int64_t));
      gathered += upto;
      held -= upto;
      std::memmove(waiting.data(), waiting.data() + upto, size_t(held) * sizeof(int64_t));
    };
    for (int64_t i = first; i < last; ++i) {
      if (i + kAhead < last) __builtin_prefetch(s.graph.rowptr + rows[i + kAhead]);
      const int64_t k = rowptr[i + 1] - rowptr[i];
      if (k == 0) continue;
      const int64_t begin = s.graph.rowptr[rows[i]], n = s.graph.rowptr[rows[i] + 1] - begin;
      if (held + k > int64_t(waiting.size())) waiting.resize(size_t(held + k));
      int64_t* to = waiting.data() + held;
      const float* weight = s.weight ? s.weight + begin : nullptr;
      // With weights, `all` may not be known from n: zeros are never drawn. Fewer than the fan-out: all that can be.
      const bool all = fanout < 0 || (!s.replace && (weight ? k < fanout : n <= fanout));
      choose(s, rows[i], weight, n, k, all, to, room);
      for (int64_t j = 0; j < k; ++j) {
        to[j] += begin;
        __builtin_prefetch(s.graph.col + to[j]);
      }
      held += k;
      if (held >= kBatch) gather(held - std::min<int64_t>(k, kBatch / 2));
    }
    gather(held);
  });
}

// Local ids -------------------------------------------------------------------------------------------------------
//
// table[node] is where to look for a node's local id; it is never cleared, since an entry counts only if what it points
// at names the node: n_id[entry] below `known`, else slot entry - known of this hop. Uninitialised memory will do.

// Number the seeds in their order; the position of the first that occurs twice, or -1.
int64_t number_seeds(const int64_t* seeds, int64_t count, int64_t* n_id, uint32_t* table) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(table + seeds[i + kAhead], 1);
    const uint32_t entry = table[seeds[i]];
    if (int64_t(entry) < i && n_id[entry] == seeds[i]) return i;
    table[seeds[i]] = uint32_t(i);
    n_id[i] = seeds[i];
  }
  return -1;
}

namespace {

// Each thread owns a class of nodes: whole cache lines of the table.
struct Classes {
  uint64_t count;
  uint64_t of(int32_t node) const { return uint64_t((uint32_t(node) >> 4) * 0x9e3779b1u) * count >> 32; }
};

template <typename F>
void each_part(int64_t parts, int threads, const F& f) {
  if (parts == 1 || threads <= 1) {
    for (int64_t part = 0; part < parts; ++part) f(part);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t part = 0; part < parts; ++part) f(part);
}

}  // namespace

// Replace the `count` nodes in `col` by local ids. Those that n_id[0 .. known) does not hold yet are numbered in the
// order of their first edge and appended to it; how many it holds then is returned. Each edge has a slot; slots are
// ordered by class, then by edge, so that a thread sees the edges of its nodes in order, in memory of its own:
//
//   slot_id[t]   the node        slot_value[t]   its local id if known, else ~(the slot of its first edge)
//
// `room`: two arrays of `count`. Without `more` hops to come the table is not brought up to date.
int64_t number_sources(int32_t* col, int64_t count, int64_t known, int64_t* n_id, uint32_t* table, bool more,
                       int32_t* room, int threads) {
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>({threads, 64, count / 4096}));
  const int64_t parts = workers == 1 ? 1 : workers * 4;
  const Classes classes{uint64_t(workers)};
  const auto edge_at = [&](int64_t part) { return count * part / parts; };
  int32_t *slot_id = workers == 1 ? col : room, *slot_value = room + count;

  // start[c * parts + p]: the first slot of class c in part p
  std::vector<int64_t> start(size_t(workers * parts + 1), 0), fresh(size_t(workers * parts), 0);
  if (workers == 1) {
    start[1] = count;
  } else {
    each_part(parts, threads, [&](int64_t p) {
      std::vector<int64_t> own(size_t(workers), 0);
      for (int64_t e = edge_at(p); e < edge_at(p + 1); ++e) ++own[classes.of(col[e])];
      for (int64_t c = 0; c < workers; ++c) start[size_t(c * parts + p + 1)] = own[size_t(c)];
    });
    for (size_t k = 1; k < start.size(); ++k) start[k] += start[k - 1];
  }
  const auto cursors = [&](int64_t p) {
    std::vector<int64_t> next(static_cast<size_t>(workers));
    for (int64_t c = 0; c < workers; ++c) next[size_t(c)] = start[size_t(c * parts + p)];
    return next;
  };
  if (workers > 1) {
    each_part(parts, threads, [&](int64_t p) {
      std::vector<int64_t> next = cursors(p);
      for (int64_t e = edge_at(p); e < edge_at(p + 1); ++e) slot_id[next[classes.of(col[e])]++] = col[e];
    });
  }

  each_part(workers, threads, [&](int64_t c) {
    const int64_t first = start[size_t(c * parts)], last = start[size_t((c + 1) * parts)];
    for (int64_t t = first; t < std::min(last, first + kAhead); ++t) __builtin_prefetch(table + slot_id[t], 1);
    int64_t t = first;
    for (int64_t p = 0; p < parts; ++p) {
      int64_t found = 0;
      for (const int64_t end = start[size_t(c * parts + p + 1)]; t < end; ++t) {
        if (t + kAhead < last) __builtin_prefetch(table + slot_id[t + kAhead], 1);
        const int32_t node = slot_id[t];
        const int64_t entry = table[node], slot = entry - known;
        if (slot < 0 && n_id[entry] == node) {
          slot_value[t] = int32_t(entry);
        } else if (slot >= first && slot < t && slot_id[slot] == node && slot_value[slot] == ~int32_t(slot)) {
          slot_value[t] = ~int32_t(slot);
        } else {
          table[node] = uint32_t(known + t);
          slot_value[t] = ~int32_t(t);
          ++found;
        }
      }
      fresh[size_t(p * workers + c)] = found;
    }
  });

  std::vector<int64_t> base(size_t(parts + 1), known);
  for (int64_t p = 0; p < parts; ++p) {
    base[size_t(p + 1)] = base[size_t(p)];
    for (int64_t c = 0; c < workers; ++c) base[size_t(p + 1)] += fresh[size_t(p * workers + c)];
  }
  each_part(parts, threads, [&](int64_t p) {
    std::vector<int64_t> next = cursors(p);
    int64_t local = base[size_t(p)];
    for (int64_t e = edge_at(p); e < edge_at(p + 1); ++e) {
      const int64_t t = next[classes.of(col[e])]++;
      if (slot_value[t] != ~int32_t(t)) continue;
      slot_value[t] = int32_t(local);
      n_id[local] = col[e];
      if (more) table[col[e]] = uint32_t(local);
      ++local;
    }
  });
  each_part(parts, threads, [&](int64_t p) {
    std::vector<int64_t> next = cursors(p);
    for (int64_t e = edge_at(p); e < edge_at(p + 1); ++e) {
      const int32_t value = slot_value[next[classes.of(col[e])]++];
      col[e] = value >= 0 ? value : slot_value[~value];
    }
  });
  return base[size_t(parts)];
}

}  // namespace gossamer
