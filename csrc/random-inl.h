// Random words: a hash of (seed, element index), so that the value of an element depends on nothing else.
// The same function in PyTorch is ops/random.py; a test holds the two together.

struct Key {
  uint32_t a, b;
};

GOSSAMER_INLINE Key key_of(uint64_t seed) {  // splitmix64
  uint64_t z = seed + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return {uint32_t(z), uint32_t(z >> 32)};
}

template <typename U>
GOSSAMER_INLINE U mix(U low, U high, Key key) {
  U x = low + key.a;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= high * 0x9e3779b9u + key.b;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

GOSSAMER_INLINE uint32_t random_word(Key key, uint64_t index) {
  return mix(uint32_t(index), uint32_t(index >> 32), key);
}

// Words of elements index .. index + 15.
GOSSAMER_INLINE u32x16 random_words(Key key, uint64_t index) {
  const u32x16 low = lane_numbers() + uint32_t(index);
  u32x16 high = splat(uint32_t(index >> 32));
  if (__builtin_expect(uint32_t(index) > 0xfffffff0u, 0)) high -= bits_of<u32x16>(low < splat(uint32_t(index)));
  return mix(low, high, key);
}

// Fifteen bits for each element, half a word: elements 32 k + l and 32 k + 16 + l, l below 16, share word 16 k + l.
// Those of elements 32 k + 16 h .. 32 k + 16 h + 15; the compiler makes the words of both halves once.
GOSSAMER_INLINE i32x16 random_half(Key key, uint64_t k, bool h) {
  const u32x16 words = random_words(key, 16 * k);
  return bits_of<i32x16>(h ? words >> 17 : words & 0x7fffu);
}
// Those of elements index .. index + 15, which may be of two blocks.
GOSSAMER_INLINE i32x16 random_halves(Key key, uint64_t index) {
  const uint64_t block = index / kLanes, next = block + 1;
  if (index % kLanes == 0) return random_half(key, block / 2, block % 2);
  const u32x16 at = lane_numbers() + uint32_t(index % kLanes);
  const i32x16 first = at < splat(uint32_t(kLanes));
  const auto of = [first](uint32_t a, uint32_t b) { return select(first, splat(a), splat(b)); };
  const uint64_t k = block / 2 * kLanes, l = next / 2 * kLanes;
  const u32x16 low = of(uint32_t(k), uint32_t(l)) + (at & uint32_t(kLanes - 1));
  const u32x16 words = mix(low, of(uint32_t(k >> 32), uint32_t(l >> 32)), key);
  const u32x16 upper = words >> 17, lower = words & 0x7fffu;
  return bits_of<i32x16>(block % 2 ? select(first, upper, lower) : select(first, lower, upper));
}

// Uniform in [0, 1) with 24 bits.
GOSSAMER_INLINE f32x16 random_unit(Key key, uint64_t index) {
  return to_float(bits_of<i32x16>(random_words(key, index) >> 8)) * (1.0f / 16777216.0f);
}
