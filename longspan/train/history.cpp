#include "longspan/train/history.h"

#include <unistd.h>

#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include "longspan/base/interleaved.h"
#include "longspan/base/read_file.h"

namespace longspan {

History read_history(const std::string& folder) {
  History history;
  const std::string path = folder + "/metrics.jsonl";
  if (access(path.c_str(), F_OK) != 0) return history;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) continue;
    // Numbers that are not finite are null in JSON.
    const auto number = [&](const char* name) {
      const auto found = event.find(name);
      return found != event.end() && found->is_number() ? found->get<double>() : NAN;
    };
    const auto kind = event.find("event");
    const bool is_train = kind != event.end() && *kind == "train";
    if (!is_train && (kind == event.end() || *kind != "valid")) continue;
    const double step = number("step");
    if (!(step >= 0)) continue;
    Moment moment{
        .step = static_cast<int64_t>(step),
        .loss = number("loss"),
        .accuracy = number("accuracy"),
        .seconds =
            number(event.contains("training_seconds") ? "training_seconds" : "seconds"),
        .tokens_per_second = number("tokens_per_second")};
    (is_train ? history.train : history.valid).push_back(moment);
  }
  return history;
}

double tokens_per_second(const History& history) {
  std::vector<double> speeds;
  for (const Moment& moment : history.train)
    if (moment.tokens_per_second > 0) speeds.push_back(moment.tokens_per_second);
  return speeds.empty() ? 0 : median(speeds);
}

}  // namespace longspan
