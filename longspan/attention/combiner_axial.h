// The variants of Combiner on a grid: a query sees its row and its column, and the rest
// in summaries along columns, along rows, or both.

#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/combiner.h"
#include "longspan/attention/kept.h"

namespace longspan {

inline constexpr Setting kGridWidth = {.name = "width",
                                       .standard = "128",
                                       .help = "tokens in a row of the grid",
                                       .least = 1};

// What of the keys outside a query's row and column is a span.
enum class Axial {
  vertical,    // each other column: its rows above; not causal: all other rows
  horizontal,  // each row above (not causal: each other row) without the query's column
  // Both in one softmax, rows in two spans, on the left and on the right of the
  // query's column. Keys are in two spans then.
  joint,
};

// The mean of the attentions `parts`.
class CombinerAxial : public Combiner {
 public:
  CombinerAxial(const Settings& settings, const Sizes& sizes, std::vector<Axial> parts)
      : Combiner(settings, sizes),
        width_(settings.integer("width")),
        parts_(std::move(parts)) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens, const std::vector<Axial>& parts);

 private:
  struct Grid;
  struct Laid;
  struct Place {
    Axial part;
    int64_t count;
    bool causal;

    bool operator==(const Place&) const = default;
  };

  torch::Tensor run(const torch::Tensor& q, const torch::Tensor& k,
                    const torch::Tensor& v, Pass& pass) override;
  torch::Tensor whole(const torch::Tensor& q, const torch::Tensor& k,
                      const torch::Tensor& v, Pass& pass);
  torch::Tensor attended(const Grid& grid, Axial part, Pass& pass);
  Laid laid(const Place& place) const;
  torch::Tensor step(const torch::Tensor& q, const torch::Tensor& k,
                     const torch::Tensor& v, Pass& pass) const;
  void add_rows(Record& state, const torch::Tensor& q, const Source& tokens) const;
  std::vector<Plan> plans(int64_t tokens, bool causal) const override;
  Plan plan(Axial part, int64_t tokens, bool causal) const;

  int64_t width_;
  std::vector<Axial> parts_;
  Kept<Place, Laid> laid_;
};

inline constexpr std::string_view kAxialState =
    "keys and values of all tokens, queries of a row, and the summaries that the next "
    "row sees with what is pooled for them";

// For Mechanism::make: the mean of `parts`.
template <Axial... parts>
constexpr Mechanism::Make<Attention> axial_made_of() {
  return [](const Settings& settings, const Sizes& sizes,
            const std::shared_ptr<Shared>&) -> std::shared_ptr<Attention> {
    return std::make_shared<CombinerAxial>(settings, sizes, std::vector{parts...});
  };
}

// For Mechanism::state_size.
template <Axial... parts>
constexpr auto axial_state_size_of() {
  return [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
    return CombinerAxial::state_size(settings, sizes, tokens, {parts...});
  };
}

}  // namespace longspan
