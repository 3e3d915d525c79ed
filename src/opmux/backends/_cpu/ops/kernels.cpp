// Norms, softmaxes and activations for the CPU: vectorized by at::vec, parallelized by at::parallel_for.
//
// Everything computes in W (float; double for double) and rounds once. A tensor is rows of `n` contiguous numbers,
// evenly spaced. A kernel declines all other calls (another layout or dtype, a wrong argument): it returns an undefined
// tensor, None in Python, and the op's reference computes the result or raises the error. So nothing here raises.

#include <torch/library.h>

#include <bit>
#include <vector>

#include "rows.h"

namespace {

// ---- norms ----------------------------------------------------------------------------------------------------------

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

bool norm_takes(const Tensor& x, const Tensor& weight) {
  return x.dim() > 0 && is_float(x.scalar_type()) && stride_of(x) >= 0 && is_column(weight, x);
}

template <class T, class W> W rms_row(const T* x, const W* w, T* y, const Rows& rows, double eps) {
  const W squares = sums_over<1, W>(rows.n, [&](int64_t i, int64_t k, auto& acc) HOT {
    Pack<W> v = load(x + i, k);
    acc[0] = fma(v, v, acc[0]);
  })[0];
  const W rstd = W(1) / std::sqrt(squares / W(rows.divisor()) + W(eps));
  sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT { store(y + i, load(x + i, k) * rstd * load(w + i, k), k); });
  return rstd;
}

Two rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset) {
  if (!norm_takes(x, weight)) return {};
  Tensor y = empty_like(x), rstd = statistic_like(x);
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x);
    const Columns<W> w(weight, offset);
    T* out = y.mutable_data_ptr<T>();
    W* stat = rstd.mutable_data_ptr<W>();
    each_row(rows, [&](int64_t r) { stat[r] = rms_row<T, W>(in[r], w.data, out + r * rows.n, rows, eps); });
  });
  return {y, rstd};
}

Three add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, double offset) {
  if (!norm_takes(x, weight) || !fits(residual, x)) return {};
  Tensor y = empty_like(x), s = empty_like(x), rstd = statistic_like(x);
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x), more(residual);
    const Columns<W> w(weight, offset);
    T* out = y.mutable_data_ptr<T>();
    T* sum = s.mutable_data_ptr<T>();
    W* stat = rstd.mutable_data_ptr<W>();
    each_row(rows, [&](int64_t r) {
      const T *a = in[r], *b = more[r];
      T* to = sum + r * rows.n;
      sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT { store(to + i, load(a + i, k) + load(b + i, k), k); });
      stat[r] = rms_row<T, W>(to, w.data, out + r * rows.n, rows, eps);  // the norm of the rounded sum
    });
  });
  return {y, s, rstd};
}

// The backward of rms_norm (without ds) and of add_rms_norm (dx = ds + ..., stored in two results).
Three rms_grads(
    const Tensor& dy, const Tensor* ds, const Tensor& x, const Tensor& weight, const Tensor& rstd, double offset) {
  if (!norm_takes(x, weight) || !fits(dy, x) || (ds && !fits(*ds, x)) || !is_statistic(rstd, x)) return {};
  Tensor dx = empty_like(x), again = ds ? empty_like(x) : Tensor(), dweight;
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x), grad(dy), more(ds ? *ds : x);
    const Columns<W> columns(weight, offset);
    const W *w = columns.data, *stat = rstd.const_data_ptr<W>();
    T* out = dx.mutable_data_ptr<T>();
    T* twin = ds ? again.mutable_data_ptr<T>() : nullptr;
    ColumnSums<W> sums(rows.n, 1);
    sums.each_row(rows, [&](int64_t r, W* dw) {
      const T *px = in[r], *pdy = grad[r], *pds = more[r];
      const W s = stat[r];
      const W product = sums_over<1, W>(rows.n, [&](int64_t i, int64_t k, auto& acc) HOT {
        acc[0] = fma(load(pdy + i, k) * load(w + i, k), load(px + i, k) * s, acc[0]);  // x * s is about 1, x may not be
      })[0];
      const W share = product / W(rows.divisor());
      sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT {
        soon(pdy + grad.stride + i);
        soon(px + in.stride + i);
        Pack<W> g = load(pdy + i, k), xhat = load(px + i, k) * s;
        store(dw + i, fma(g, xhat, load(dw + i, k)), k);
        Pack<W> d = (g * load(w + i, k) - xhat * share) * s;
        if (ds) d = d + load(pds + i, k);
        store(out + r * rows.n + i, d, k);
        if (ds) store(twin + r * rows.n + i, d, k);
      });
    });
    dweight = sums.take(0, weight.scalar_type());
  });
  return {dx, again, dweight};
}

Two rms_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd, double offset) {
  auto [dx, _, dweight] = rms_grads(dy, nullptr, x, weight, rstd, offset);
  return {dx, dweight};
}

Three add_rms_norm_bwd(
    const Tensor& dy, const Tensor& ds, const Tensor& s, const Tensor& weight, const Tensor& rstd, double offset) {
  return rms_grads(dy, &ds, s, weight, rstd, offset);
}

Three layer_norm(const Tensor& x, const Tensor& weight, const OptTensor& bias, double eps, double offset) {
  if (!norm_takes(x, weight) || (bias && !is_column(*bias, x))) return {};
  Tensor y = empty_like(x), mean = statistic_like(x), rstd = statistic_like(x);
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x);
    const Columns<W> w(weight, offset), b(bias ? *bias : weight, 0);
    T* out = y.mutable_data_ptr<T>();
    W *means = mean.mutable_data_ptr<W>(), *stat = rstd.mutable_data_ptr<W>();
    each_row(rows, [&](int64_t r) {
      const T* p = in[r];
      const W total =
          sums_over<1, W>(rows.n, [&](int64_t i, int64_t k, auto& acc) HOT { acc[0] = acc[0] + load(p + i, k); })[0];
      const W mu = total / W(rows.divisor());
      const W squares = sums_over<1, W>(rows.n, [&](int64_t i, int64_t k, auto& acc) HOT {
        Pack<W> d = only(load(p + i, k) - mu, k, W(0));
        acc[0] = fma(d, d, acc[0]);
      })[0];
      const W s = W(1) / std::sqrt(squares / W(rows.divisor()) + W(eps));
      sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT {
        Pack<W> v = (load(p + i, k) - mu) * s * load(w.data + i, k);
        store(out + r * rows.n + i, bias ? v + load(b.data + i, k) : v, k);
      });
      means[r] = mu;
      stat[r] = s;
    });
  });
  return {y, mean, rstd};
}

Three layer_norm_bwd(
    const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd, double offset) {
  if (!norm_takes(x, weight) || !fits(dy, x) || !is_statistic(mean, x) || !is_statistic(rstd, x)) return {};
  Tensor dx = empty_like(x), dweight, dbias;
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x), grad(dy);
    const Columns<W> columns(weight, offset);
    const W *w = columns.data, *means = mean.const_data_ptr<W>(), *stat = rstd.const_data_ptr<W>();
    T* out = dx.mutable_data_ptr<T>();
    ColumnSums<W> sums(rows.n, 2);
    sums.each_row(rows, [&](int64_t r, W* dw) {
      const T *px = in[r], *pdy = grad[r];
      W* db = dw + rows.n;
      const W mu = means[r], s = stat[r];
      const auto both = sums_over<2, W>(rows.n, [&](int64_t i, int64_t k, auto& acc) HOT {
        Pack<W> g = load(pdy + i, k) * load(w + i, k);
        acc[0] = acc[0] + g;
        acc[1] = fma(g, (load(px + i, k) - mu) * s, acc[1]);
      });
      const W first = both[0] / W(rows.divisor()), second = both[1] / W(rows.divisor());
      sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT {
        Pack<W> g = load(pdy + i, k), xhat = (load(px + i, k) - mu) * s;
        store(dw + i, fma(g, xhat, load(dw + i, k)), k);
        store(db + i, load(db + i, k) + g, k);
        store(out + r * rows.n + i, (g * load(w + i, k) - first - xhat * second) * s, k);
      });
    });
    dweight = sums.take(0, weight.scalar_type());
    dbias = sums.take(1, weight.scalar_type());
  });
  return {dx, dweight, dbias};
}

// ---- softmaxes ------------------------------------------------------------------------------------------------------

template <class W> constexpr W INF = std::numeric_limits<W>::infinity();

bool softmax_takes(const Tensor& x, int64_t dim) {
  return x.dim() > 0 && is_float(x.scalar_type()) && (dim == -1 || dim == x.dim() - 1) && stride_of(x) >= 0;
}

// Stores e = exp(x - top) and returns the sum of e; e may be x. Does not scale x: the compiler would fuse
// x * scale - top, which is then not 0 at the maximum, but the rounding error of top: hundreds if x is above 1e10.
template <class W> C10_NOINLINE W exponentials(const W* x, W top, W* e, int64_t n) {
  return sums_over<1, W>(n, [&](int64_t i, int64_t k, auto& acc) HOT {
    Pack<W> v = exp<true>(load(x + i, k) - top);
    store(e + i, v, k);
    acc[0] = acc[0] + only(v, k, W(0));
  })[0];
}

// The maximum of scale * x; with COPY, scale * x is stored to e.
template <bool COPY, class T, class W> HOT inline W largest(const T* x, W scale, W* e, int64_t n) {
  Pack<W> most(-INF<W>);
  sweep<W>(n, [&](int64_t i, int64_t k) HOT {
    Pack<W> v = load(x + i, k);
    if constexpr (COPY) store(e + i, v = v * scale, k);
    most = larger(most, only(v, k, -INF<W>));
  });
  return largest_of(most);
}

// exp(scale * x - max) is stored to e; returns their sum, and the max. If x is neither converted nor scaled, it is read
// twice instead of being copied to e.
template <class T, class W> inline std::array<W, 2> exps(const T* x, W scale, W* e, int64_t n) {
  if constexpr (std::is_same_v<T, W>) {
    if (scale == W(1)) {
      const W top = largest<false>(x, scale, e, n);
      return {exponentials(x, top, e, n), top};
    }
  }
  const W top = largest<true>(x, scale, e, n);
  return {exponentials<W>(e, top, e, n), top};
}

// The exponentials of a row are stored in the result if it has type W, else in a buffer of the thread.
template <class T, class F> void each_softmax_row(const Rows& rows, T* y, F f) {
  using W = Wide<T>;
  constexpr bool in_place = std::is_same_v<T, W>;
  share_out(rows.count, GRAIN / rows.divisor(), [&](int64_t from, int64_t to) {
    std::unique_ptr<W[]> own = room<W>(in_place ? 0 : rows.n);
    for (int64_t r = from; r < to; ++r) {
      T* out = y + r * rows.n;
      if constexpr (in_place) f(r, out, out);
      else f(r, out, own.get());
    }
  });
}

Tensor log_softmax(const Tensor& x, int64_t dim) {
  if (!softmax_takes(x, dim)) return {};
  Tensor y = empty_like(x);
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x);
    each_softmax_row(rows, y.mutable_data_ptr<T>(), [&](int64_t r, T* out, W* e) {
      const T* p = in[r];
      const auto [total, top] = exps<T, W>(p, W(1), e, rows.n);
      const W high = top, low = std::log(total);
      sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT { store(out + i, load(p + i, k) - high - low, k); });
    });
  });
  return y;
}

// dx of a row of n: scale * y * (dy - sum(dy * y)).
template <class T, class W> void softmax_grad_row(const T* dy, const T* y, T* dx, int64_t n, W scale) {
  const W product = sums_over<1, W>(n, [&](int64_t i, int64_t k, auto& acc) HOT {
    acc[0] = fma(load(dy + i, k), load(y + i, k), acc[0]);
  })[0];
  sweep<W>(n, [&](int64_t i, int64_t k) HOT {
    soon(dy + n + i);
    soon(y + n + i);
    store(dx + i, load(y + i, k) * (load(dy + i, k) - product) * scale, k);
  });
}

Tensor log_softmax_bwd(const Tensor& dy, const Tensor& y, int64_t dim) {
  if (!softmax_takes(y, dim) || !fits(dy, y)) return {};
  Tensor dx = empty_like(y);
  by_dtype(y.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(y);
    const In<T> in(y), grad(dy);
    T* out = dx.mutable_data_ptr<T>();
    each_row(rows, [&](int64_t r) {
      const T *py = in[r], *g = grad[r];
      const W total =
          sums_over<1, W>(rows.n, [&](int64_t i, int64_t k, auto& acc) HOT { acc[0] = acc[0] + load(g + i, k); })[0];
      sweep<W>(rows.n, [&](int64_t i, int64_t k) HOT {
        store(out + r * rows.n + i, load(g + i, k) - exp(load(py + i, k)) * total, k);
      });
    });
  });
  return dx;
}

// A mask that broadcasts to [.., queries, keys], except along the keys: finds the mask's row for a row of x.
struct MaskRows {
  const uint8_t* data = nullptr;
  int64_t dims = 0, sizes[16], strides[16];

  static bool takes(const Tensor& mask, const Tensor& x) {
    const int64_t dims = mask.dim(), lead = x.dim() - dims;
    const bool bytes = mask.scalar_type() == ScalarType::Bool || mask.scalar_type() == ScalarType::Byte;
    if (!bytes || dims < 1 || lead < 0 || x.dim() > 16) return false;
    if (mask.size(-1) != x.size(-1) || (mask.size(-1) > 1 && mask.stride(-1) != 1)) return false;
    for (int64_t d = 0; d < dims; ++d) {
      if (mask.size(d) != 1 && mask.size(d) != x.size(lead + d)) return false;
    }
    return true;
  }

  MaskRows(const Tensor& mask, const Tensor& x) : data(static_cast<const uint8_t*>(mask.const_data_ptr())) {
    for (int64_t d = mask.dim() - 2; d >= 0; --d, ++dims) {
      sizes[dims] = x.size(x.dim() - mask.dim() + d);
      strides[dims] = mask.size(d) == 1 ? 0 : mask.stride(d);
    }
  }

  const uint8_t* operator[](int64_t row) const {
    const uint8_t* at = data;
    for (int64_t d = 0; d < dims; ++d) {
      at += row % sizes[d] * strides[d];
      row /= sizes[d];
    }
    return at;
  }
};

// The number of keys that the query of a row attends to; the last query attends to all.
struct Sight {
  int64_t queries, keys;
  bool causal;

  Sight(const Tensor& x, bool causal) : queries(causal ? x.size(-2) : 1), keys(x.size(-1)), causal(causal) {}
  int64_t operator()(int64_t row) const {
    return causal ? std::clamp<int64_t>(row % queries + keys - queries + 1, 0, keys) : keys;
  }
};

Tensor softmax_of(const Tensor& x, const OptTensor& mask, double scale, bool causal) {
  Tensor y = empty_like(x);
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(x);
    const In<T> in(x);
    const Sight sight(x, causal);
    std::optional<MaskRows> masks;
    if (mask) masks.emplace(*mask, x);
    each_softmax_row(rows, y.mutable_data_ptr<T>(), [&](int64_t r, T* out, W* e) {
      const T* p = in[r];
      const int64_t n = sight(r);
      if (masks) {
        static thread_local std::vector<W> hidden;  // all bits are set where the mask is not 0
        hidden.resize(n + Pack<W>::size);
        const uint8_t* bytes = (*masks)[r];
        const W all = std::bit_cast<W>(typename Exp<W>::Int(-1));
        std::transform(bytes, bytes + n, hidden.begin(), [all](uint8_t b) { return b ? all : W(0); });
        const W* m = hidden.data();
        Pack<W> most(-INF<W>);
        sweep<W>(n, [&](int64_t i, int64_t k) HOT {
          Pack<W> v = where(load_all(m + i), Pack<W>(-INF<W>), load(p + i, k) * W(scale));
          store(e + i, v, k);
          most = larger(most, only(v, k, -INF<W>));
        });
        const W part = W(1) / exponentials<W>(e, largest_of(most), e, n);
        sweep<W>(n, [&](int64_t i, int64_t k) HOT {
          store(out + i, where(load_all(m + i), Pack<W>(W(0)), load(e + i, k) * part), k);
        });
      } else {
        const W part = W(1) / exps<T, W>(p, W(scale), e, n)[0];
        sweep<W>(n, [&](int64_t i, int64_t k) HOT { store(out + i, load(e + i, k) * part, k); });
      }
      std::fill(out + n, out + rows.n, T(0));
    });
  });
  return y;
}

Tensor softmax_grad(const Tensor& dy, const Tensor& y, double scale, bool causal) {
  Tensor dx = empty_like(y);
  by_dtype(y.scalar_type(), [&](auto of) {
    using T = decltype(of);
    using W = Wide<T>;
    const Rows rows(y);
    const In<T> in(y), grad(dy);
    const Sight sight(y, causal);
    T* out = dx.mutable_data_ptr<T>();
    each_row(rows, [&](int64_t r) {
      const int64_t n = sight(r);
      T* to = out + r * rows.n;
      softmax_grad_row<T, W>(grad[r], in[r], to, n, W(scale));
      std::fill(to + n, to + rows.n, T(0));
    });
  });
  return dx;
}

Tensor softmax(const Tensor& x, int64_t dim) {
  return softmax_takes(x, dim) ? softmax_of(x, std::nullopt, 1.0, false) : Tensor();
}
Tensor softmax_bwd(const Tensor& dy, const Tensor& y, int64_t dim) {
  return softmax_takes(y, dim) && fits(dy, y) ? softmax_grad(dy, y, 1.0, false) : Tensor();
}
Tensor scaled_softmax(const Tensor& x, const OptTensor& mask, double scale, bool causal) {
  const bool taken = x.dim() > 1 && softmax_takes(x, -1) && (!mask || MaskRows::takes(*mask, x));
  return taken ? softmax_of(x, mask, scale, causal) : Tensor();
}
Tensor scaled_softmax_bwd(const Tensor& dy, const Tensor& y, double scale, bool causal) {
  return y.dim() > 1 && softmax_takes(y, -1) && fits(dy, y) ? softmax_grad(dy, y, scale, causal) : Tensor();
}

// ---- activations ----------------------------------------------------------------------------------------------------

// Formulas: each computes one pack per output from one pack per input.
template <class A> struct One {
  static constexpr int INS = 1, OUTS = 1;
  template <class W> HOT static std::array<Pack<W>, 1> at(std::array<Pack<W>, 1> x) { return {A::value(x[0])}; }
};
template <class A> struct OneBwd {
  static constexpr int INS = 2, OUTS = 1;
  template <class W> HOT static std::array<Pack<W>, 1> at(std::array<Pack<W>, 2> dy_x) {
    return {dy_x[0] * A::both(dy_x[1]).slope};
  }
};
template <class A> struct Biased {
  static constexpr int INS = 2, OUTS = 1;
  template <class W> HOT static std::array<Pack<W>, 1> at(std::array<Pack<W>, 2> x) { return {A::value(x[0] + x[1])}; }
};
template <class A> struct BiasedBwd {
  static constexpr int INS = 3, OUTS = 1;
  template <class W> HOT static std::array<Pack<W>, 1> at(std::array<Pack<W>, 3> dy_x_bias) {
    return {dy_x_bias[0] * A::both(dy_x_bias[1] + dy_x_bias[2]).slope};
  }
};
template <class A> struct Gate {
  static constexpr int INS = 2, OUTS = 1;
  template <class W> HOT static std::array<Pack<W>, 1> at(std::array<Pack<W>, 2> ab) {
    return {A::value(ab[0]) * ab[1]};
  }
};
template <class A> struct GateBwd {
  static constexpr int INS = 3, OUTS = 2;
  template <class W> HOT static std::array<Pack<W>, 2> at(std::array<Pack<W>, 3> dy_a_b) {
    auto [value, slope] = A::both(dy_a_b[1]);
    return {dy_a_b[0] * dy_a_b[2] * slope, dy_a_b[0] * value};
  }
};

// A function that computes n numbers per output from n numbers per input, all of type W.
using Block = void (*)(const void* const* in, void* const* out, int64_t n);

// The last pack overlaps the one before; fewer numbers than a pack are processed in a copy.
template <class Form, class W, size_t... J>
inline void work(const void* const* from, void* const* to, int64_t n, std::index_sequence<J...>) {
  constexpr int64_t L = Pack<W>::size;
  const bool brief = n < L;
  W copies[Form::INS][L] = {}, results[Form::OUTS][L];
  const W* in[] = {static_cast<const W*>(from[J])...};
  W* out[Form::OUTS];
  for (int j = 0; brief && j < Form::INS; ++j) {
    std::copy_n(in[j], n, copies[j]);
    in[j] = copies[j];
  }
  for (int o = 0; o < Form::OUTS; ++o) out[o] = brief ? results[o] : static_cast<W*>(to[o]);
  const int64_t last = brief ? 0 : n - L;
  for (int64_t i = 0; i < n; i += L) {
    const int64_t at = std::min(i, last);
    auto y = Form::at(std::array{load_all(in[J] + at)...});
    for (int o = 0; o < Form::OUTS; ++o) store_all(out[o] + at, y[o]);
  }
  for (int o = 0; brief && o < Form::OUTS; ++o) std::copy_n(results[o], n, static_cast<W*>(to[o]));
}
template <class Form, class W> void block(const void* const* in, void* const* out, int64_t n) {
  work<Form, W>(in, out, n, std::make_index_sequence<Form::INS>{});
}

struct Kernels {
  Block of_float, of_double;
  int ins, outs;
};
template <class Form>
constexpr Kernels KERNELS{block<Form, float>, block<Form, double>, Form::INS, Form::OUTS};

// The arguments of a kernel. With `biased`, the last input has type W, and all rows share one row of it.
struct Args {
  Rows rows;
  const void* in[3];
  int64_t stride[3];
  void* out[2];
  int64_t step;  // row stride of the results
  bool biased = false;
};

// Computes a range of a row. 16-bit numbers are converted to W in pieces: kernels for 16-bit types would take twice as
// long to compile, and run no faster. The first output is also added to `sums`.
template <class T>
void stretch(const Kernels& kernels, const Args& args, int64_t row, int64_t from, int64_t to, Wide<T>* sums = nullptr) {
  using W = Wide<T>;
  constexpr bool direct = std::is_same_v<T, W>;
  constexpr int64_t MOST = direct ? std::numeric_limits<int64_t>::max() : 1024;
  const Block run = std::is_same_v<W, float> ? kernels.of_float : kernels.of_double;
  W held[5][direct ? 1 : MOST];
  for (int64_t at = from, n = 0; at < to; at += n) {
    n = std::min(MOST, to - at);
    const void* in[3];
    void* out[2];
    for (int j = 0; j < kernels.ins; ++j) {
      if (direct || (args.biased && j + 1 == kernels.ins)) {
        in[j] = static_cast<const W*>(args.in[j]) + row * args.stride[j] + at;
      } else {
        const T* p = static_cast<const T*>(args.in[j]) + row * args.stride[j] + at;
        sweep<W>(n, [&](int64_t i, int64_t k) HOT { store(held[j] + i, load(p + i, k), k); });
        in[j] = held[j];
      }
    }
    T* results[2];
    for (int o = 0; o < kernels.outs; ++o) {
      results[o] = static_cast<T*>(args.out[o]) + row * args.step + at;
      out[o] = direct ? static_cast<void*>(results[o]) : held[3 + o];
    }
    run(in, out, n);
    if (sums) {
      const W* y = static_cast<const W*>(out[0]);
      sweep<W>(n, [&](int64_t i, int64_t k) HOT { store(sums + at + i, load(sums + at + i, k) + load(y + i, k), k); });
    }
    for (int o = 0; !direct && o < kernels.outs; ++o) {
      sweep<W>(n, [&](int64_t i, int64_t k) HOT { store(results[o] + i, load(held[3 + o] + i, k), k); });
    }
  }
}

void elementwise(const Kernels& kernels, ScalarType dtype, const Args& args) {
  by_dtype(dtype, [&](auto of) {
    using T = decltype(of);
    each_stretch(args.rows, [&](int64_t row, int64_t from, int64_t to) {
      stretch<T>(kernels, args, row, from, to);
    });
  });
}

bool act_takes(const Tensor& x) { return is_float(x.scalar_type()) && stride_of(x) >= 0; }

// Runs the kernels on tensors of one shape: as one row if all are contiguous, else row by row.
void alike(const Kernels& kernels, std::initializer_list<const Tensor*> in, std::initializer_list<Tensor*> out) {
  const Tensor& x = **in.begin();
  const bool flat = std::all_of(in.begin(), in.end(), [](const Tensor* t) { return t->is_contiguous(); });
  Args args{Rows(x, flat)};
  args.step = args.rows.n;
  int i = 0, o = 0;
  for (const Tensor* t : in) {
    args.in[i] = t->const_data_ptr();
    args.stride[i++] = flat ? 0 : stride_of(*t);
  }
  for (Tensor* t : out) args.out[o++] = t->mutable_data_ptr();
  elementwise(kernels, x.scalar_type(), args);
}

Tensor on_one(const Kernels& kernels, const Tensor& x) {
  if (!act_takes(x)) return {};
  Tensor y = empty_like(x);
  alike(kernels, {&x}, {&y});
  return y;
}

// A gradient and x, or the two tensors of a gate.
Tensor on_two(const Kernels& kernels, const Tensor& first, const Tensor& x) {
  if (!act_takes(x) || !fits(first, x)) return {};
  Tensor y = empty_like(x);
  alike(kernels, {&first, &x}, {&y});
  return y;
}

Two on_three(const Kernels& kernels, const Tensor& dy, const Tensor& a, const Tensor& b) {
  if (!act_takes(a) || !fits(b, a) || !fits(dy, a)) return {};
  Tensor da = empty_like(a), db = empty_like(a);
  alike(kernels, {&dy, &a, &b}, {&da, &db});
  return {da, db};
}

bool halves_take(const Tensor& x) { return act_takes(x) && x.dim() > 0 && x.size(-1) % 2 == 0; }

const void* shifted(const Tensor& x, int64_t by) {
  return static_cast<const char*>(x.const_data_ptr()) + by * static_cast<int64_t>(x.element_size());
}

Tensor on_halves(const Kernels& kernels, const Tensor& x) {
  if (!halves_take(x)) return {};
  c10::SmallVector<int64_t, 8> shape(x.sizes());
  const int64_t n = shape.back() /= 2, stride = stride_of(x);
  Tensor y = empty(shape, x.scalar_type());
  elementwise(kernels, x.scalar_type(),
              {Rows(y), {shifted(x, 0), shifted(x, n)}, {stride, stride}, {y.mutable_data_ptr()}, n});
  return y;
}

Tensor on_halves_bwd(const Kernels& kernels, const Tensor& dy, const Tensor& x) {
  if (!halves_take(x) || !act_takes(dy) || dy.scalar_type() != x.scalar_type() || dy.dim() != x.dim()) return {};
  const int64_t n = x.size(-1) / 2, stride = stride_of(x), lead = x.dim() - 1;
  if (dy.size(-1) != n || dy.sizes().slice(0, lead) != x.sizes().slice(0, lead)) return {};
  Tensor dx = empty_like(x);
  char* out = static_cast<char*>(dx.mutable_data_ptr());
  elementwise(kernels, x.scalar_type(),
              {Rows(dy), {shifted(dy, 0), shifted(x, 0), shifted(x, n)}, {stride_of(dy), stride, stride},
               {out, out + n * static_cast<int64_t>(x.element_size())}, 2 * n});
  return dx;
}

// A bias in W; zeros if there is none.
class Bias {
  std::optional<Columns<float>> floats;
  std::optional<Columns<double>> doubles;
  Tensor none;

 public:
  const void* data;

  Bias(const OptTensor& bias, const Tensor& x) {
    if (!bias) data = (none = zeros(x.size(-1), wide_of(x.scalar_type()))).const_data_ptr();
    else if (x.scalar_type() == ScalarType::Double) data = doubles.emplace(*bias, 0).data;
    else data = floats.emplace(*bias, 0).data;
  }
};

Tensor on_biased(const Kernels& kernels, const Tensor& x, const Tensor& bias) {
  if (!act_takes(x) || x.dim() == 0 || !is_column(bias, x)) return {};
  Tensor y = empty_like(x);
  const Bias columns(bias, x);
  const Rows rows(x);
  elementwise(kernels, x.scalar_type(),
              {rows, {x.const_data_ptr(), columns.data}, {stride_of(x), 0}, {y.mutable_data_ptr()}, rows.n, true});
  return y;
}

Two on_biased_bwd(const Kernels& kernels, const Tensor& dy, const Tensor& x, const OptTensor& bias) {
  if (!act_takes(x) || x.dim() == 0 || !fits(dy, x) || (bias && !is_column(*bias, x))) return {};
  const Bias columns(bias, x);
  const Rows rows(x);
  Tensor dx = empty_like(x), dbias;
  const Args args{rows, {dy.const_data_ptr(), x.const_data_ptr(), columns.data}, {stride_of(dy), stride_of(x), 0},
                  {dx.mutable_data_ptr()}, rows.n, true};
  by_dtype(x.scalar_type(), [&](auto of) {
    using T = decltype(of);
    ColumnSums<Wide<T>> sums(rows.n, 1);
    sums.each_row(rows, [&](int64_t r, Wide<T>* db) { stretch<T>(kernels, args, r, 0, rows.n, db); });
    dbias = sums.take(0, bias ? bias->scalar_type() : x.scalar_type());
  });
  return {dx, dbias};
}

template <class A> Tensor one(const Tensor& x) { return on_one(KERNELS<One<A>>, x); }
template <class A> Tensor one_bwd(const Tensor& dy, const Tensor& x) { return on_two(KERNELS<OneBwd<A>>, dy, x); }
template <class A> Tensor mul(const Tensor& a, const Tensor& b) { return on_two(KERNELS<Gate<A>>, a, b); }
template <class A> Two mul_bwd(const Tensor& dy, const Tensor& a, const Tensor& b) {
  return on_three(KERNELS<GateBwd<A>>, dy, a, b);
}
template <class A> Tensor glu(const Tensor& x) { return on_halves(KERNELS<Gate<A>>, x); }
template <class A> Tensor glu_bwd(const Tensor& dy, const Tensor& x) {
  return on_halves_bwd(KERNELS<GateBwd<A>>, dy, x);
}
template <class A> Tensor biased(const Tensor& x, const Tensor& bias) {
  return on_biased(KERNELS<Biased<A>>, x, bias);
}
template <class A> Two biased_bwd(const Tensor& dy, const Tensor& x, const OptTensor& bias) {
  return on_biased_bwd(KERNELS<BiasedBwd<A>>, dy, x, bias);
}

}  // namespace

// Registered for all backends, so that tensors of other devices are declined here instead of raising in torch; and for
// autograd, which saves 1.5 us per call. So any tensor may arrive here, and `Gated` checks it. There is no gradient
// formula: opmux handles autograd before it calls these functions.
#define OP(name, schema, f) \
  m.def(name schema, torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &Gated<&f>::run))
#define GATED(act)                                                                \
  OP(#act "_mul", "(Tensor a, Tensor b) -> Tensor", mul<act>);                    \
  OP(#act "_mul_bwd", "(Tensor dy, Tensor a, Tensor b) -> (Tensor, Tensor)", mul_bwd<act>); \
  OP(#act "_glu", "(Tensor x) -> Tensor", glu<act>);                              \
  OP(#act "_glu_bwd", "(Tensor dy, Tensor x) -> Tensor", glu_bwd<act>)
#define ACT(act)                                                                  \
  GATED(act);                                                                     \
  OP(#act, "(Tensor x) -> Tensor", one<act>);                                     \
  OP(#act "_bwd", "(Tensor dy, Tensor x) -> Tensor", one_bwd<act>);               \
  OP(#act "_bias", "(Tensor x, Tensor bias) -> Tensor", biased<act>);             \
  OP(#act "_bias_bwd", "(Tensor dy, Tensor x, Tensor? bias) -> (Tensor, Tensor)", biased_bwd<act>)

TORCH_LIBRARY_FRAGMENT(opmux_cpu, m) {
  OP("rms_norm", "(Tensor x, Tensor weight, float eps, float offset) -> (Tensor, Tensor)", rms_norm);
  OP("rms_norm_bwd",
     "(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float offset) -> (Tensor, Tensor)", rms_norm_bwd);
  OP("add_rms_norm",
     "(Tensor x, Tensor residual, Tensor weight, float eps, float offset) -> (Tensor, Tensor, Tensor)", add_rms_norm);
  OP("add_rms_norm_bwd",
     "(Tensor dy, Tensor ds, Tensor s, Tensor weight, Tensor rstd, float offset) -> (Tensor, Tensor, Tensor)",
     add_rms_norm_bwd);
  OP("layer_norm",
     "(Tensor x, Tensor weight, Tensor? bias, float eps, float offset) -> (Tensor, Tensor, Tensor)", layer_norm);
  OP("layer_norm_bwd",
     "(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd, float offset) -> (Tensor, Tensor, Tensor)",
     layer_norm_bwd);
  OP("softmax", "(Tensor x, int dim) -> Tensor", softmax);
  OP("softmax_bwd", "(Tensor dy, Tensor y, int dim) -> Tensor", softmax_bwd);
  OP("log_softmax", "(Tensor x, int dim) -> Tensor", log_softmax);
  OP("log_softmax_bwd", "(Tensor dy, Tensor y, int dim) -> Tensor", log_softmax_bwd);
  OP("scaled_softmax", "(Tensor x, Tensor? mask, float scale, bool causal) -> Tensor", scaled_softmax);
  OP("scaled_softmax_bwd", "(Tensor dy, Tensor y, float scale, bool causal) -> Tensor", scaled_softmax_bwd);
  ACT(gelu_tanh);
  ACT(gelu);
  ACT(silu);
  ACT(qgelu);
  ACT(relu);
  ACT(srelu);
  GATED(sigmoid);
}
