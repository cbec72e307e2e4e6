#include "longspan/cli/score_table.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include "longspan/base/words.h"

namespace longspan::cli {

void print_scores(const std::string& title, const Score& score,
                  const std::vector<Reference>& references) {
  const auto line = [](const std::string& name, const std::string& value) {
    std::cout << std::left << std::setw(50) << name << std::right << std::setw(8)
              << value;
  };
  const double deviation =
      std::sqrt(score.accuracy * (1 - score.accuracy) /
                static_cast<double>(std::max<int64_t>(1, score.examples)));
  line(title, percent(score.accuracy));
  std::cout << "  +- " << percent(deviation) << ", " << score.examples
            << " examples, loss " << std::setprecision(4) << score.loss << '\n';
  for (const Reference& reference : references) {
    line("  " + reference.name, percent(reference.accuracy));
    std::cout << '\n';
  }
}

}  // namespace longspan::cli
