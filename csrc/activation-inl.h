// Activations and their derivatives, on sixteen elements. The names and their order are ops/activation.py's.

enum Act { kIdentity = 0, kRelu = 1, kLeakyRelu = 2, kElu = 3, kGelu = 4 };

// 0.5 erfc(|z| / sqrt 2) = exp(-t^2) s P(s) with s = 1 / (1 + t / 2), t = |z| / sqrt 2. P is a minimax fit of
// erfc(t) exp(t^2) / s on [0, 10], relative error 4e-8. Also gives exp(-z^2 / 2), which the derivative needs.
GOSSAMER_INLINE f32x16 normal_tail(f32x16 z, f32x16* density) {
  const f32x16 t = select(z > splat(0.0f), z, splat(0.0f) - z) * 0.70710678f;
  *density = exp_nonpositive(splat(0.0f) - t * t);
  const f32x16 s = splat(1.0f) / (t * 0.5f + 1.0f);
  f32x16 p = splat(-0.0590692237f);
  p = p * s + 0.284576207f;
  p = p * s - 0.487202376f;
  p = p * s + 0.278069884f;
  p = p * s - 0.02662744f;
  p = p * s + 0.202687576f;
  p = p * s + 0.243103594f;
  p = p * s + 0.282375336f;
  p = p * s + 0.282086402f;
  return *density * (s * p) * 0.5f;
}

// e^z - 1 for z <= 0: near zero the series, where the difference would have no digits left.
GOSSAMER_INLINE f32x16 exp_minus_one(f32x16 z) {
  return select(z > splat(-0.5f), exp_series(z) * z, exp_nonpositive(z) - 1.0f);
}

template <int A>
GOSSAMER_INLINE f32x16 activate(f32x16 z, float slope) {
  const f32x16 zero = splat(0.0f);
  if (A == kRelu) return select((z > zero) | (z != z), z, zero);  // NaN passes, so that a divergence stays visible
  if (A == kLeakyRelu) return select(z > zero, z, z * slope);
  if (A == kElu) return select(z > zero, z, exp_minus_one(select(z > zero, zero, z)) * slope);
  if (A == kGelu) {
    f32x16 density;
    const f32x16 tail = normal_tail(z, &density);
    return z * select(z > zero, splat(1.0f) - tail, tail);
  }
  return z;
}

template <int A>
GOSSAMER_INLINE f32x16 derivative(f32x16 z, float slope) {
  const f32x16 zero = splat(0.0f), one = splat(1.0f);
  if (A == kRelu) return select((z > zero) | (z != z), one, zero);
  if (A == kLeakyRelu) return select(z > zero, one, splat(slope));
  if (A == kElu) return select(z > zero, one, exp_nonpositive(select(z > zero, zero, z)) * slope);
  if (A == kGelu) {
    f32x16 density;
    const f32x16 tail = normal_tail(z, &density);
    return select(z > zero, one - tail, tail) + z * density * 0.39894228f;  // 1 / sqrt(2 pi)
  }
  return one;
}

// f with the activation as a compile-time constant: one compiled copy of a loop for each.
template <int A>
struct ActTag {
  static constexpr int value = A;
};
template <typename F>
GOSSAMER_INLINE void by_act(int act, const F& f) {
  switch (act) {
    case kRelu:
      return f(ActTag<kRelu>());
    case kLeakyRelu:
      return f(ActTag<kLeakyRelu>());
    case kElu:
      return f(ActTag<kElu>());
    case kGelu:
      return f(ActTag<kGelu>());
    default:
      return f(ActTag<kIdentity>());
  }
}
