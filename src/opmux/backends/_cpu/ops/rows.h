// Tensors as rows: which ones the kernels take, how rows are distributed over threads, and sums over rows.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "packs.h"

namespace {

using at::ScalarType;
using at::Tensor;
using OptTensor = std::optional<Tensor>;

constexpr int64_t GRAIN = 32768;  // a thread gets at least this many numbers, as in ATen's own kernels

// ---- the gate -------------------------------------------------------------------------------------------------------

// Whether all elements of t lie inside its storage. FSDP frees a storage without changing the tensor.
bool has_memory(const Tensor& t) {
  if (!t.has_storage()) return false;
  if (t.numel() == 0) return true;
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return storage->data() != nullptr && static_cast<size_t>(last + 1) * t.itemsize() <= storage->nbytes();
}

// Whether t is a dense CPU tensor whose memory can be read directly, without a forward gradient. The list has the
// allowed dispatch keys. Any other key (Python, functorch, functionalization, quantized, sparse, nested, the negative
// and the conjugate bit, forward AD's zeros, keys that torch adds later) means that the memory is missing, or does not
// hold the values.
bool plain(const Tensor& t) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet allowed(
      {DispatchKey::CPU, DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU, DispatchKey::AutocastCPU});
  if (!t.defined()) return false;
  const c10::DispatchKeySet keys = t.key_set();
  return keys.has(DispatchKey::CPU) && (keys.raw_repr() & ~allowed.raw_repr()) == 0 && has_memory(t) &&
      !t._fw_grad(0).defined();
}
bool plain(const OptTensor& t) { return !t || plain(*t); }
template <class N> std::enable_if_t<std::is_arithmetic_v<N>, bool> plain(N) { return true; }

// Calls F if all tensors are plain and no dispatch mode (a tracer, a counter) is active; a mode must see the op and not
// its parts. Otherwise returns an undefined tensor. The check costs 1 ns here, 50 in Python. An argument of another
// type, such as a list of tensors, does not compile until plain() has an overload for it.
template <auto F> struct Gated;
template <class R, class... A, R (*F)(A...)> struct Gated<F> {
  static R run(A... args) {
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return R();
    return (plain(args) && ...) ? F(args...) : R();
  }
};

// ---- rows -----------------------------------------------------------------------------------------------------------

template <class F> bool by_dtype(ScalarType dtype, F f) {
  switch (dtype) {
    case ScalarType::Float: f(float{}); return true;
    case ScalarType::BFloat16: f(BFloat16{}); return true;
    case ScalarType::Half: f(Half{}); return true;
    case ScalarType::Double: f(double{}); return true;
    default: return false;
  }
}

bool is_float(ScalarType dtype) { return by_dtype(dtype, [](auto) {}); }
ScalarType wide_of(ScalarType dtype) { return dtype == ScalarType::Double ? dtype : ScalarType::Float; }

struct Rows {
  int64_t count = 1, n = 1;

  explicit Rows(const Tensor& x) : n(x.dim() ? x.size(-1) : 1) {
    for (int64_t d = 0; d + 1 < x.dim(); ++d) count *= x.size(d);
  }
  Rows(const Tensor& x, bool flat) : Rows(x) {
    if (flat) *this = Rows{1, x.numel()};
  }
  Rows(int64_t count, int64_t n) : count(count), n(n) {}
  int64_t divisor() const { return std::max<int64_t>(n, 1); }  // of a mean; the mean of an empty row is then 0
};

// The stride of the rows of t; -1 if they are not evenly spaced, or their elements not contiguous.
int64_t stride_of(const Tensor& t) {
  const int64_t last = t.dim() - 1;
  if (last < 0 || t.is_contiguous()) return last < 0 ? 1 : t.size(last);
  if (t.size(last) > 1 && t.stride(last) != 1) return -1;
  int64_t step = -1, next = 0;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (t.size(d) == 1) continue;
    if (step < 0) step = t.stride(d);
    else if (t.stride(d) != next) return -1;
    next = t.stride(d) * t.size(d);
  }
  return step < 0 ? t.size(last) : step;
}

template <class T> struct In {
  const T* data;
  int64_t stride;

  explicit In(const Tensor& t) : data(t.const_data_ptr<T>()), stride(stride_of(t)) {}
  const T* operator[](int64_t row) const { return data + row * stride; }
};

// Prefetch: the next row is read while this one is written, which saves 6 % of a backward that does not fit the caches.
// Beyond the last row it has no effect.
inline void soon(const void* p) { __builtin_prefetch(p); }

bool fits(const Tensor& t, const Tensor& x) {
  return t.scalar_type() == x.scalar_type() && t.sizes() == x.sizes() && stride_of(t) >= 0;
}
bool is_column(const Tensor& t, const Tensor& x) {
  return is_float(t.scalar_type()) && t.dim() == 1 && t.size(0) == x.size(-1) && t.is_contiguous();
}
bool is_statistic(const Tensor& t, const Tensor& x) {
  return t.scalar_type() == wide_of(x.scalar_type()) && t.is_contiguous() &&
      t.sizes() == x.sizes().slice(0, x.dim() - 1);
}

Tensor empty(at::IntArrayRef sizes, ScalarType dtype) {
  return Tensor(at::detail::empty_cpu(sizes, dtype, /*pin_memory=*/false, std::nullopt));
}
Tensor zeros(int64_t n, ScalarType dtype) { return empty({n}, dtype).zero_(); }
Tensor empty_like(const Tensor& x) { return empty(x.sizes(), x.scalar_type()); }
Tensor statistic_like(const Tensor& x) { return empty(x.sizes().slice(0, x.dim() - 1), wide_of(x.scalar_type())); }

using Piece = c10::function_ref<void(int64_t, int64_t)>;

// Calls piece(from, to) for parts of [0, count), in parallel. Not a template: a parallel region per kernel would add
// half to the compile time.
C10_NOINLINE void share_out(int64_t count, int64_t grain, Piece piece) {
  at::parallel_for(0, count, std::max<int64_t>(1, grain), [&](int64_t from, int64_t to) { piece(from, to); });
}

// Calls f(row) for all rows, in parallel.
template <class F> inline void each_row(const Rows& rows, F f) {
  share_out(rows.count, GRAIN / rows.divisor(), [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) f(r);
  });
}

// Calls f(row, first, last) for ranges of rows, in parallel. A single row, such as a flattened tensor, is cut into
// ranges.
template <class F> inline void each_stretch(const Rows& rows, F f) {
  const bool single = rows.count == 1;
  share_out(single ? rows.n : rows.count, single ? GRAIN : GRAIN / rows.divisor(), [&](int64_t from, int64_t to) {
    for (int64_t r = single ? 0 : from, end = single ? 1 : to; r < end; ++r) {
      f(r, single ? from : 0, single ? to : rows.n);
    }
  });
}

// One number of type W per column: t plus `offset`. Uses t's own memory if it already holds these numbers.
template <class W> class Columns {
  std::unique_ptr<W[]> held;

 public:
  const W* data = nullptr;

  Columns(const Tensor& t, double offset) {
    const int64_t n = t.numel();
    if (offset == 0 && t.scalar_type() == c10::CppTypeToScalarType<W>::value) {
      data = t.const_data_ptr<W>();
      return;
    }
    held.reset(new W[n]);
    by_dtype(t.scalar_type(), [&](auto of) {
      using C = decltype(of);
      const C* p = t.const_data_ptr<C>();
      if constexpr (std::is_same_v<Wide<C>, W>) {
        sweep<W>(n, [&](int64_t i, int64_t k) HOT { store(held.get() + i, load(p + i, k) + W(offset), k); });
      } else {
        for (int64_t i = 0; i < n; ++i) held[i] = static_cast<W>(p[i]) + W(offset);
      }
    });
    data = held.get();
  }
};

// Sums over rows, one per column. Each thread sums its rows in blocks of 64, so that many rows lose no more precision
// than few; then the sums of the threads are added in order.
template <class W> class ColumnSums {
  static constexpr int64_t BLOCK = 64;
  int64_t n, width;
  std::unique_ptr<W[]> sums;

 public:
  // `per_row` sums per column: [per_row, n].
  ColumnSums(int64_t n, int64_t per_row) : n(n), width(n * per_row) {}

  // Calls f(row, sums) for all rows; f adds to the sums.
  template <class F> void each_row(const Rows& rows, F f) {
    const int64_t grain = std::max<int64_t>(1, GRAIN / rows.divisor());
    const int64_t shares = std::clamp<int64_t>(rows.count / grain, 1, at::get_num_threads());
    const int64_t per_share = (rows.count + shares - 1) / shares;
    sums.reset(new W[shares * width]());
    share_out(shares, 1, [&](int64_t from, int64_t to) {
      std::unique_ptr<W[]> block(new W[width]());
      for (int64_t s = from; s < to; ++s) {
        const int64_t end = std::min(rows.count, (s + 1) * per_share);
        for (int64_t r = s * per_share; r < end;) {
          const int64_t stop = std::min(end, r + BLOCK);
          for (; r < stop; ++r) f(r, block.get());
          W* total = sums.get() + s * width;
          sweep<W>(width, [&](int64_t i, int64_t k) HOT {
            store(total + i, load(total + i, k) + load(block.get() + i, k), k);
            store(block.get() + i, Pack<W>(W(0)), k);
          });
        }
      }
    });
    for (int64_t s = 1; s < shares; ++s) {
      for (int64_t i = 0; i < width; ++i) sums[i] += sums[s * width + i];
    }
  }

  Tensor take(int64_t which, ScalarType dtype) const {
    Tensor out = empty({n}, dtype);
    by_dtype(dtype, [&](auto of) {
      using C = decltype(of);
      std::transform(sums.get() + which * n, sums.get() + (which + 1) * n, out.mutable_data_ptr<C>(),
                     [](W v) { return static_cast<C>(v); });
    });
    return out;
  }
};

template <class W> std::unique_ptr<W[]> room(int64_t n) { return std::unique_ptr<W[]>(n ? new W[n] : nullptr); }

}  // namespace
