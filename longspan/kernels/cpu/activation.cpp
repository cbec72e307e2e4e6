#include "longspan/kernels/cpu/activation.h"

#include "longspan/kernels/cpu/vec.h"
#include "longspan/kernels/cpu/vec_math.h"
#include "longspan/kernels/cpu/vec_sums.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

[[gnu::always_inline]] inline Floats size_of(const Floats& z) { return z < 0 ? -z : z; }

// The probabilities of a normal number.
class Normal {
 public:
  [[gnu::always_inline]] explicit Normal(const Floats& z) : bell_(exp(-0.5f * z * z)) {
    // The probability of being beyond |z|, over bell_, is 1 / (|z| + 3) times what is
    // nearly a polynomial of v = (|z| - 3) / (|z| + 3); this one is off by 5e-8 of the
    // result at most.
    const Floats t = 1.0f / (size_of(z) + 3.0f);
    const Floats v = 1.0f - 6.0f * t;
    Floats p = broadcast(-0.000266764624f);
    p = p * v - 0.000903250679f;
    p = p * v + 0.00107603546f;
    p = p * v + 0.00692392095f;
    p = p * v - 0.010479935f;
    p = p * v - 0.0472561007f;
    p = p * v + 0.230019349f;
    p = p * v - 0.509332285f;
    p = p * v + 0.729083669f;
    const Floats beyond = bell_ * t * p;
    below_ = z < 0 ? beyond : 1.0f - beyond;
  }

  Floats below() const { return below_; }
  Floats density() const { return bell_ * 0.398942280f; }

 private:
  Floats bell_, below_;
};

struct Gelu {
  [[gnu::always_inline]] static Floats value(const Floats& z) {
    return z * Normal(z).below();
  }
  [[gnu::always_inline]] static Floats gradient(const Floats& z, const Floats& dy) {
    const Normal normal(z);
    return dy * (normal.below() + z * normal.density());
  }
};

// 0.5 (1 + tanh(w / 2)) = 1 / (1 + e^-w) with w = z (kLinear + kCubic z^2), taken at
// |w|, where nothing overflows or cancels.
class Logistic {
 public:
  [[gnu::always_inline]] explicit Logistic(const Floats& z) {
    constexpr float kLinear = 1.59576912f, kCubic = 0.0713548163f;
    constexpr float kFar = 1e4f;  // for squares; the result has long been 0 or 1
    const Floats square = z * z > kFar ? broadcast(kFar) : z * z;
    const Floats e = exp(-size_of(z) * (kLinear + kCubic * square));
    const Floats above = 1.0f / (1.0f + e);
    result_ = z < 0 ? e * above : above;
    slope_ = e * above * above;
    w_slope_ = kLinear + 3 * kCubic * square;
  }

  Floats result() const { return result_; }
  Floats slope() const { return slope_; }      // by w
  Floats w_slope() const { return w_slope_; }  // of w, by z

 private:
  Floats result_, slope_, w_slope_;
};

struct GeluTanh {
  [[gnu::always_inline]] static Floats value(const Floats& z) {
    return z * Logistic(z).result();
  }
  [[gnu::always_inline]] static Floats gradient(const Floats& z, const Floats& dy) {
    const Logistic logistic(z);
    return dy * (logistic.result() + z * logistic.slope() * logistic.w_slope());
  }
};

// NaN stays NaN.
struct Relu {
  [[gnu::always_inline]] static Floats value(const Floats& z) {
    return z < 0 ? Floats{} : z;
  }
  [[gnu::always_inline]] static Floats gradient(const Floats& z, const Floats& dy) {
    return z <= 0 ? Floats{} : dy;
  }
};

// One loop for whole vectors and for the last one: an element's result must not depend
// on its place, and the compiler may round two copies of one formula differently.
template <class Curve>
void activate(const ActivationRows<float>& rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    const float* x = rows.x + row * rows.width;
    float* y = rows.y + row * rows.width;
    for (int64_t i = 0; i < rows.width; i += kLanes) {
      const int64_t count = rows.width - i;
      Floats z = load(x + i, count);
      if (rows.bias) z += load(rows.bias + i, count);
      store(Curve::value(z), y + i, count);
    }
  }
}

template <class Curve>
void activate_gradient(const ActivationGradientRows<float>& rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    const int64_t first = row * rows.width;
    for (int64_t i = 0; i < rows.width; i += kLanes) {
      const int64_t count = rows.width - i;
      Floats z = load(rows.x + first + i, count);
      if (rows.bias) z += load(rows.bias + i, count);
      const Floats d = Curve::gradient(z, load(rows.dy + first + i, count));
      if (rows.dx) store(d, rows.dx + first + i, count);
      if (rows.dbias) add(d, broadcast(1.0f), rows.dbias + i, count);
    }
  }
}

}  // namespace

void gelu(const ActivationRows<float>& rows) { activate<Gelu>(rows); }
void gelu_tanh(const ActivationRows<float>& rows) { activate<GeluTanh>(rows); }
void relu(const ActivationRows<float>& rows) { activate<Relu>(rows); }

void gelu_gradient(const ActivationGradientRows<float>& rows) {
  activate_gradient<Gelu>(rows);
}
void gelu_tanh_gradient(const ActivationGradientRows<float>& rows) {
  activate_gradient<GeluTanh>(rows);
}
void relu_gradient(const ActivationGradientRows<float>& rows) {
  activate_gradient<Relu>(rows);
}

}  // namespace longspan::cpu::LONGSPAN_ISA
