#include "longspan/cli/score_table.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "longspan/base/words.h"

namespace longspan::cli {

void print_scores(const std::string& title, const Score& score,
                  const Measures& measures, const std::vector<Reference>& references) {
  const auto line = [](const std::string& name, const std::string& value) {
    std::cout << std::left << std::setw(50) << name << std::right << std::setw(8)
              << value;
  };
  const double deviation =
      std::sqrt(score.accuracy * (1 - score.accuracy) /
                static_cast<double>(std::max<int64_t>(1, score.answers)));
  line(title, percent(score.accuracy));
  std::cout << "  +- " << percent(deviation) << ", " << score.answers
            << " answers, loss " << std::setprecision(4) << score.loss << '\n';
  for (const auto& [name, value] : measures) {
    std::string words = name;
    std::ranges::replace(words, '_', ' ');
    std::ostringstream number;
    number << std::setprecision(5) << value;
    line("  " + words, number.str());
    std::cout << '\n';
  }
  for (const Reference& reference : references) {
    line("  " + reference.name, percent(reference.accuracy));
    std::cout << '\n';
  }
}

}  // namespace longspan::cli
