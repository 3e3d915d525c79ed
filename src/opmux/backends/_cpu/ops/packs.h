// Vectors of float or double, two at a time: loads that widen, stores that round, sums, exp, the activations' maths.

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

namespace {

using at::BFloat16;
using at::Half;
using at::vec::Vectorized;

// For functions that are called in a loop: if they are not inlined, their numbers go through memory, and they are half
// as fast. The attribute forces inlining, because the compiler stops inlining at some point of a large file.
#define HOT __attribute__((always_inline))
#define COLD __attribute__((noinline, cold))

// ---- packs: two vectors of W, as many numbers as one vector of a 16-bit type holds ----------------------------------

template <class T> using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class W> using Vec = Vectorized<W>;

template <class W> struct Pack {
  static constexpr int64_t size = 2 * Vec<W>::size();
  Vec<W> a, b;
  Pack() : Pack(W(0)) {}
  Pack(Vec<W> a, Vec<W> b) : a(a), b(b) {}
  explicit Pack(W v) : a(v), b(v) {}
};

#define PACK_OPERATOR(op)                                                                                       \
  template <class W> inline Pack<W> operator op(Pack<W> x, Pack<W> y) { return {x.a op y.a, x.b op y.b}; }      \
  template <class W> inline Pack<W> operator op(Pack<W> x, std::type_identity_t<W> y) { return x op Pack<W>(y); } \
  template <class W> inline Pack<W> operator op(std::type_identity_t<W> x, Pack<W> y) { return Pack<W>(x) op y; }
PACK_OPERATOR(+)
PACK_OPERATOR(-)
PACK_OPERATOR(*)
PACK_OPERATOR(/)

template <class W> inline Pack<W> fma(Pack<W> x, Pack<W> y, Pack<W> z) {
  return {at::vec::fmadd(x.a, y.a, z.a), at::vec::fmadd(x.b, y.b, z.b)};
}
template <class W> inline Pack<W> fma(Pack<W> x, Pack<W> y, W z) { return fma(x, y, Pack<W>(z)); }
template <class W> inline Pack<W> larger(Pack<W> x, Pack<W> y) {  // NaN if either is NaN
  return {at::vec::maximum(x.a, y.a), at::vec::maximum(x.b, y.b)};
}
template <class W> inline Pack<W> at_least(Pack<W> x, W low) {  // NaN stays NaN
  return {at::vec::clamp_min(x.a, Vec<W>(low)), at::vec::clamp_min(x.b, Vec<W>(low))};
}
template <class W> inline Pack<W> within(Pack<W> x, W low, W high) {
  return {at::vec::clamp(x.a, Vec<W>(low), Vec<W>(high)), at::vec::clamp(x.b, Vec<W>(low), Vec<W>(high))};
}
template <class W> inline Pack<W> negative(Pack<W> x) { return {x.a < Vec<W>(W(0)), x.b < Vec<W>(W(0))}; }
template <class W> inline Pack<W> positive(Pack<W> x) { return {x.a > Vec<W>(W(0)), x.b > Vec<W>(W(0))}; }
template <class W> inline Pack<W> where(Pack<W> mask, Pack<W> x, Pack<W> y) {
  return {Vec<W>::blendv(y.a, x.a, mask.a), Vec<W>::blendv(y.b, x.b, mask.b)};
}
template <class W> inline Pack<W> magnitude(Pack<W> x) { return {x.a.abs(), x.b.abs()}; }

#if defined(__aarch64__) && !defined(__ARM_FEATURE_BF16)
// Arm without bf16 instructions: at::vec widens and narrows by shifts, one per cycle. The CPU runs two of the
// instructions below per cycle, and a copy takes half the time.
inline Pack<float> widen(const BFloat16* p) {
  const uint16x8_t x = vld1q_u16(reinterpret_cast<const uint16_t*>(p)), none = vdupq_n_u16(0);
  return {vreinterpretq_f32_u16(vzip1q_u16(none, x)), vreinterpretq_f32_u16(vzip2q_u16(none, x))};
}
inline void narrow(BFloat16* p, Pack<float> x) {
  const uint16x8_t a = vreinterpretq_u16_f32(x.a), b = vreinterpretq_u16_f32(x.b);
  const uint16x8_t high = vuzp2q_u16(a, b), low = vuzp1q_u16(a, b);
  // Round to nearest even: up if the rest is above a half, or if it is a half and `high` is odd.
  const uint16x8_t odd = vandq_u16(high, vdupq_n_u16(1));
  const uint16x8_t up = vcgtq_u16(vqaddq_u16(low, odd), vdupq_n_u16(0x8000));
  const uint16x8_t number = vuzp1q_u16(
      vreinterpretq_u16_u32(vceqq_f32(x.a, x.a)), vreinterpretq_u16_u32(vceqq_f32(x.b, x.b)));
  vst1q_u16(reinterpret_cast<uint16_t*>(p), vbslq_u16(number, vsubq_u16(high, up), vdupq_n_u16(0x7fc0)));
}
constexpr bool OWN_BF16 = true;
#else
Pack<float> widen(const BFloat16*);
void narrow(BFloat16*, Pack<float>);
constexpr bool OWN_BF16 = false;
#endif

template <class T> inline Pack<Wide<T>> load_all(const T* p) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return {Vec<T>::loadu(p), Vec<T>::loadu(p + Vec<T>::size())};
  } else if constexpr (OWN_BF16 && std::is_same_v<T, BFloat16>) {
    return widen(p);
  } else {
    auto [a, b] = at::vec::convert_to_float<T>(Vectorized<T>::loadu(p));
    return {a, b};
  }
}

template <class T> inline void store_all(T* p, Pack<Wide<T>> x) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    x.a.store(p);
    x.b.store(p + Vec<T>::size());
  } else if constexpr (OWN_BF16 && std::is_same_v<T, BFloat16>) {
    narrow(p, x);
  } else {
    at::vec::convert_from_float<T>(x.a, x.b).store(p);
  }
}

// The first k numbers, then zeros. Rows that do not end with a pack are rare, so their code is kept out of the loops.
template <class T> COLD Pack<Wide<T>> load_part(const T* p, int64_t k) {
  T held[Pack<Wide<T>>::size] = {};
  std::memcpy(held, p, k * sizeof(T));
  return load_all(static_cast<const T*>(held));
}
template <class T> COLD void store_part(T* p, Pack<Wide<T>> x, int64_t k) {
  T held[Pack<Wide<T>>::size];
  store_all(held, x);
  std::memcpy(p, held, k * sizeof(T));
}
template <class W> COLD Pack<W> part_of(Pack<W> x, int64_t k, W fill) {
  W held[Pack<W>::size];
  store_all(held, x);
  std::fill(held + k, held + Pack<W>::size, fill);
  return load_all(static_cast<const W*>(held));
}

template <class T> inline Pack<Wide<T>> load(const T* p, int64_t k) {
  return k == Pack<Wide<T>>::size ? load_all(p) : load_part(p, k);
}
template <class T> inline void store(T* p, Pack<Wide<T>> x, int64_t k) {
  if (k == Pack<Wide<T>>::size) store_all(p, x);
  else store_part(p, x, k);
}
// The first k numbers of x, then `fill`.
template <class W> inline Pack<W> only(Pack<W> x, int64_t k, W fill) {
  return k == Pack<W>::size ? x : part_of(x, k, fill);
}

template <class W> inline W sum_of(Pack<W> x) {
  W held[Vec<W>::size()], r = 0;
  (x.a + x.b).store(held);
  for (W v : held) r += v;
  return r;
}
template <class W> inline W largest_of(Pack<W> x) {
  W held[Vec<W>::size()];
  at::vec::maximum(x.a, x.b).store(held);
  W r = held[0];
  for (W v : held) r = std::isnan(v) || v > r ? v : r;
  return r;
}

// Calls body(i, k) for each pack of a row: the k numbers from index i on.
template <class W, class F> HOT inline void sweep(int64_t n, F body) {
  constexpr int64_t L = Pack<W>::size;
  int64_t i = 0;
  for (; i + L <= n; i += L) body(i, L);
  if (i < n) body(i, n - i);
}

// N sums over a row: add(i, k, sums) adds the k numbers from i on. Packs alternate between two sets of sums, so that an
// addition does not wait for the previous one. Every 2048 numbers the sums are added to doubles, so a long row loses no
// more precision than a short one.
template <int N, class W, class F> HOT inline std::array<W, N> sums_over(int64_t n, F add) {
  constexpr int64_t STRETCH = 2048, L = Pack<W>::size;
  double total[N] = {};
  for (int64_t i = 0; i < n;) {
    const int64_t end = std::min(n, i + STRETCH);
    std::array<Pack<W>, N> even, odd;
    for (; i + 2 * L <= end; i += 2 * L) {
      add(i, L, even);
      add(i + L, L, odd);
    }
    for (; i < end; i += L) add(i, std::min(L, end - i), even);
    for (int j = 0; j < N; ++j) total[j] += sum_of(even[j] + odd[j]);
  }
  std::array<W, N> out;
  for (int j = 0; j < N; ++j) out[j] = static_cast<W>(total[j]);
  return out;
}

// ---- maths ----------------------------------------------------------------------------------------------------------

// exp(x) = 2^k * exp(r), r = x - k ln 2. At LOW and HIGH the bits of 2^k become those of 0 and of infinity.
template <class W> struct Exp;
template <> struct Exp<float> {
  using Int = uint32_t;
  static constexpr int SHIFT = 23;
  static constexpr Int BIAS = Int(127) << SHIFT;
  static constexpr float LOW = -88.02f, HIGH = 88.9f, MAGIC = 0x1.8p23f, LOG2E = 0x1.715476p0f;
  static constexpr float LN2_HIGH = 0x1.62e4p-1f, LN2_LOW = 0x1.7f7d1cp-20f;
  // exp(r) = 1 + r + r^2 * q(r), relative error 3e-9 for |r| <= ln 2 / 2
  static constexpr float Q[] = {0.49999993f, 0.1666652f, 0.041668397f, 0.008368762f, 0.0013814227f};
};
template <> struct Exp<double> {
  using Int = uint64_t;
  static constexpr int SHIFT = 52;
  static constexpr Int BIAS = Int(1023) << SHIFT;
  static constexpr double LOW = -709.05, HIGH = 710.0, MAGIC = 0x1.8p52, LOG2E = 0x1.71547652b82fep0;
  static constexpr double LN2_HIGH = 0x1.62e42fefa0000p-1, LN2_LOW = 0x1.cf79abc9e3b3ap-40;
  // relative error 1e-16
  static constexpr double Q[] = {0x1.000000000001fp-1,  0x1.5555555555081p-3,  0x1.5555555548e6bp-5,
                                 0x1.11111111da206p-7,  0x1.6c16c19b7f7bfp-10, 0x1.a019feae4922ep-13,
                                 0x1.a01960b49115bp-16, 0x1.71e2d79276843p-19, 0x1.28de5ae36c237p-22,
                                 0x1.a9b9c449339c9p-26};
};

typedef uint32_t Bits32 __attribute__((vector_size(sizeof(Vec<float>))));
typedef uint64_t Bits64 __attribute__((vector_size(sizeof(Vec<double>))));

// 2^k, given MAGIC + k. Unsigned, because the sum overflows for NaN.
template <class W> inline Vec<W> power_of_two(Vec<W> shifted) {
  std::conditional_t<std::is_same_v<W, float>, Bits32, Bits64> bits;
  static_assert(sizeof(bits) == sizeof(shifted));
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << Exp<W>::SHIFT) + Exp<W>::BIAS;
  Vec<W> out;
  std::memcpy(static_cast<void*>(&out), &bits, sizeof(bits));
  return out;
}

// The polynomial with coefficients C::Q, the constant first.
template <class C, int I = 0, class W> HOT inline Pack<W> polynomial(Pack<W> x) {
  if constexpr (I + 1 == sizeof(C::Q) / sizeof(C::Q[0])) return Pack<W>(W(C::Q[I]));
  else return fma(polynomial<C, I + 1>(x), x, W(C::Q[I]));
}

// Exact to about one unit in the last place; 0 below the normal numbers, infinity from the last power of two on.
// UP_TO_ZERO: no number is above 0.
template <bool UP_TO_ZERO = false, class W> HOT inline Pack<W> exp(Pack<W> x) {
  using E = Exp<W>;
  x = UP_TO_ZERO ? at_least(x, E::LOW) : within(x, E::LOW, E::HIGH);
  Pack<W> shifted = fma(x, Pack<W>(E::LOG2E), E::MAGIC);
  Pack<W> k = shifted - E::MAGIC;
  Pack<W> r = fma(k, Pack<W>(-E::LN2_LOW), fma(k, Pack<W>(-E::LN2_HIGH), x));
  Pack<W> p = fma(polynomial<E>(r), r * r, r) + W(1);
  return p * Pack<W>(power_of_two(shifted.a), power_of_two(shifted.b));
}

// An activation: value(x), and both(x): {value, slope}. Those of the form x * sigmoid(k(x)) share their maths.
template <class W> struct Both {
  Pack<W> value, slope;
};

// e = exp(-|k|) is never infinite: sigmoid(|k|) = s = 1 / (1 + e), sigmoid(-|k|) = e * s; their product is the slope.
template <class W> HOT inline Both<W> sigmoid_both(Pack<W> k) {
  Pack<W> e = exp<true>(Pack<W>(W(0)) - magnitude(k));
  Pack<W> s = W(1) / (e + W(1));
  Pack<W> t = e * s;
  return {where(negative(k), t, s), t * s};
}

template <class Gate> struct Swish {
  template <class W> HOT static Pack<W> value(Pack<W> x) {
    return x / (exp(Pack<W>(W(0)) - Gate::at(x)) + W(1));
  }
  template <class W> HOT static Both<W> both(Pack<W> x) {
    Pack<W> near = within(x, W(-1e3), W(1e3));  // beyond, the slope would be infinity times zero
    auto [s, slope] = sigmoid_both(Gate::at(near));
    return {x * s, fma(near * Gate::rate(near), slope, s)};
  }
};

struct Cubic {  // 0.5 + 0.5 * tanh(u) = sigmoid(2u)
  static constexpr double K1 = 1.5957691216057308, K3 = K1 * 0.044715;
  template <class W> HOT static Pack<W> at(Pack<W> x) { return x * fma(x * x, Pack<W>(W(K3)), W(K1)); }
  template <class W> HOT static Pack<W> rate(Pack<W> x) { return fma(x * x, Pack<W>(W(3 * K3)), W(K1)); }
};
struct Straight {
  template <class W> HOT static Pack<W> at(Pack<W> x) { return x; }
  template <class W> HOT static Pack<W> rate(Pack<W>) { return Pack<W>(W(1)); }
};
struct Steep {
  template <class W> HOT static Pack<W> at(Pack<W> x) { return x * W(1.702); }
  template <class W> HOT static Pack<W> rate(Pack<W>) { return Pack<W>(W(1.702)); }
};

using gelu_tanh = Swish<Cubic>;
using silu = Swish<Straight>;
using qgelu = Swish<Steep>;

struct gelu {
  static constexpr float Q[] = {0.254829592f, -0.284496736f, 1.421413741f, -1.453152027f, 1.061405429f};
  // The normal distribution's share beyond |x|: Abramowitz and Stegun 7.1.26, error 1.5e-7; `bell` is exp(-x^2 / 2).
  HOT static Pack<float> tail(Pack<float> x, Pack<float> bell) {
    Pack<float> t = 1.0f / fma(magnitude(x), Pack<float>(0.3275911f * 0.70710678f), 1.0f);
    return polynomial<gelu>(t) * t * bell * 0.5f;
  }
  template <class W> HOT static Both<W> both(Pack<W> x) {
    Pack<W> bell = exp<true>(x * x * W(-0.5)), share = bell;
    if constexpr (std::is_same_v<W, float>) {
      share = tail(x, bell);
      share = where(negative(x), share, 1.0f - share);
    } else {
      auto erf = [](Vec<W> v) { return (v * Vec<W>(W(0.70710678118654752))).map(std::erf); };
      share = fma(Pack<W>(erf(x.a), erf(x.b)), Pack<W>(W(0.5)), W(0.5));
    }
    return {x * share, fma(x * bell, Pack<W>(W(0.3989422804014327)), share)};
  }
  template <class W> HOT static Pack<W> value(Pack<W> x) { return both(x).value; }
};

struct relu {
  template <class W> HOT static Pack<W> value(Pack<W> x) { return at_least(x, W(0)); }
  template <class W> HOT static Both<W> both(Pack<W> x) {
    return {value(x), where(positive(x), Pack<W>(W(1)), Pack<W>(W(0)))};
  }
};
struct srelu {
  template <class W> HOT static Pack<W> value(Pack<W> x) { return both(x).value; }
  template <class W> HOT static Both<W> both(Pack<W> x) {
    Pack<W> up = at_least(x, W(0));
    return {up * up, up + up};
  }
};
struct sigmoid {
  template <class W> HOT static Pack<W> value(Pack<W> x) { return W(1) / (exp(Pack<W>(W(0)) - x) + W(1)); }
  template <class W> HOT static Both<W> both(Pack<W> x) { return sigmoid_both(x); }
};

}  // namespace
