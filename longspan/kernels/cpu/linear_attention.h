// What the vector code sees of linear attention: tokens of one head. No torch, no
// containers: see vec.h.
//
// A state is the sums so far, [features, values + 1], the last column those of ones;
// for log features row f is times exp(-peaks[f]), so that no feature can push another
// out of range.

#pragma once

#include <cstdint>

namespace longspan::cpu {

// How out comes from num and den: as longspan::Normaliser.
enum class LinearDivisor { none, plus, at_least, if_positive };

struct LinearForm {
  int64_t features = 0;
  int64_t values = 0;
  bool causal = false;
  bool log_features = false;
  LinearDivisor divisor = LinearDivisor::none;
  double epsilon = 0;
};

// The rows of each are `stride` apart; causal: as many queries as keys.
template <class Number>
struct LinearTokens {
  LinearForm form = {};
  int64_t queries = 0;
  int64_t keys = 0;
  const Number* q = nullptr;  // [queries, features]
  int64_t q_stride = 0;
  const Number* k = nullptr;  // [keys, features]
  int64_t k_stride = 0;
  const Number* v = nullptr;  // [keys, values]
  int64_t v_stride = 0;
  const double* log_decay = nullptr;  // [keys], or null for 0
  const Number* weights = nullptr;    // [keys], or null for 1
};

template <class Number>
struct LinearSums {
  Number* sums = nullptr;   // [features, values + 1]
  Number* peaks = nullptr;  // [features], or null for plain features
};

// Of the queries; dense.
template <class Number>
struct LinearResults {
  Number* out = nullptr;  // [queries, values]
  Number* lse = nullptr;  // [queries]
  // What the gradients need.
  Number* den = nullptr;    // [queries], times exp(-scale)
  Number* scale = nullptr;  // [queries], or null for plain features
  // Null, or the states before every kLinearPiece-th token. Causal only.
  LinearSums<Number> kept = {};
};

// Slopes of the results; dense.
template <class Number>
struct LinearSlopes {
  const Number* dout = nullptr;  // [queries, values], or null for 0
  const Number* dlse = nullptr;  // [queries], or null for 0
  const Number* out = nullptr;   // the results, as above
  const Number* den = nullptr;
  const Number* scale = nullptr;
};

// Dense, and null for not wanted.
template <class Number>
struct LinearGradients {
  Number* dq = nullptr;          // [queries, features]
  Number* dk = nullptr;          // [keys, features], added to
  Number* dv = nullptr;          // [keys, values], added to
  Number* dweights = nullptr;    // [keys], added to
  double* dlog_decay = nullptr;  // [keys]
};

inline constexpr int64_t kLinearPiece = 256;  // tokens

template <class Number>
struct LinearKernels {
  // How many numbers the scratch of the others must have, from a multiple of 64 bytes
  // on.
  int64_t (*scratch)(const LinearForm&);

  // Decays the state and adds the keys. Raises *largest to the largest log feature,
  // less the decays after it.
  void (*add_keys)(const LinearTokens<Number>&, const LinearSums<Number>& state,
                   Number* largest, Number* scratch);

  // What the queries get. Causal: from the state and the keys up to their own, which
  // are added to it as by add_keys; else from the state alone.
  void (*attend)(const LinearTokens<Number>&, const LinearSums<Number>& state,
                 Number* largest, const LinearResults<Number>&, Number* scratch);
};

template <class Number>
struct LinearGradientKernels {
  int64_t (*scratch)(const LinearForm&);

  // Turns the slope of the state after the tokens into that of the state before them.
  void (*add_queries)(const LinearTokens<Number>&, const LinearSlopes<Number>&,
                      const LinearSums<Number>& slope, Number* scratch);

  // Causal: from the states before every kLinearPiece-th token and the slope of the
  // state after the last, which becomes as by add_queries.
  void (*gradients)(const LinearTokens<Number>&, const LinearSlopes<Number>&,
                    const LinearSums<Number>& states, const LinearSums<Number>& slope,
                    const LinearGradients<Number>&, Number* scratch);

  // Not causal: of the queries from the state, of the keys from its slope.
  void (*query_gradients)(const LinearTokens<Number>&, const LinearSlopes<Number>&,
                          const LinearSums<Number>& state,
                          const LinearGradients<Number>&, Number* scratch);
  void (*key_gradients)(const LinearTokens<Number>&, const LinearSums<Number>& slope,
                        const LinearGradients<Number>&, Number* scratch);
};

namespace portable {
extern const LinearKernels<float> linear_of_floats;
extern const LinearKernels<double> linear_of_doubles;
extern const LinearGradientKernels<float> linear_gradient_of_floats;
extern const LinearGradientKernels<double> linear_gradient_of_doubles;
}  // namespace portable
namespace avx2 {
extern const LinearKernels<float> linear_of_floats;
extern const LinearKernels<double> linear_of_doubles;
extern const LinearGradientKernels<float> linear_gradient_of_floats;
extern const LinearGradientKernels<double> linear_gradient_of_doubles;
}  // namespace avx2
namespace avx512 {
extern const LinearKernels<float> linear_of_floats;
extern const LinearKernels<double> linear_of_doubles;
extern const LinearGradientKernels<float> linear_gradient_of_floats;
extern const LinearGradientKernels<double> linear_gradient_of_doubles;
}  // namespace avx512

}  // namespace longspan::cpu
