#include "longspan/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "longspan/base/error.h"
#include "longspan/base/words.h"

namespace longspan {
namespace {

const std::vector<std::string> kNames = {"constant", "warmup", "rsqrt",  "rsqrt_scaled",
                                         "cosine",   "linear", "halving"};
// What each of them takes.
const std::vector<std::string> kSettings[] = {{},
                                              {"steps", "floor"},
                                              {"start", "floor"},
                                              {"start", "floor"},
                                              {"steps", "start", "floor", "restart"},
                                              {"steps", "start", "floor", "restart"},
                                              {"steps", "factor", "floor"}};

constexpr char kForm[] =
    "train.schedule must be a list of factors such as warmup or "
    "{name: warmup, steps: 1000}";

}  // namespace

Schedule::Schedule(double rate, const Value& factors, int64_t total) : rate_(rate) {
  const auto* list = factors.as<Value::List>();
  require(list != nullptr, kForm, ", got ", factors.text());
  for (const Value& entry : *list) {
    Value::Map settings;
    std::string name;
    if (const auto* word = entry.as<std::string>()) name = *word;
    if (const auto* map = entry.as<Value::Map>()) {
      settings = *map;
      const auto found = settings.find("name");
      if (found != settings.end() && found->second.as<std::string>())
        name = *found->second.as<std::string>();
      settings.erase("name");
    }
    require(!name.empty(), kForm, ", got ", entry.text());
    const auto place = std::ranges::find(kNames, name);
    require(place != kNames.end(), "train.schedule: no factor '", name, "'",
            hint(name, kNames));
    const auto& takes = kSettings[place - kNames.begin()];
    for (const auto& [key, value] : settings)
      require(std::ranges::find(takes, key) != takes.end(), "train.schedule: ", name,
              " has no setting '", key, "'", hint(key, takes));
    Factor factor{.shape = static_cast<Shape>(place - kNames.begin())};
    const auto number = [&](const char* key, double& target, double least,
                            double most) {
      const auto found = settings.find(key);
      if (found == settings.end()) return;
      const auto given = found->second.as_number();
      require(given && *given >= least && *given <= most, "train.schedule: ", key,
              " of ", name, " must be a number from ", least, " to ", most, ", got ",
              found->second.text());
      target = *given;
    };
    number("steps", factor.steps, 1, 1e15);
    number("start", factor.start, 0, 1e15);
    number("floor", factor.floor, 0, 1);
    number("factor", factor.factor, 0, 1);
    if (const auto found = settings.find("restart"); found != settings.end()) {
      require(found->second.as<bool>(), "train.schedule: restart of ", name,
              " must be true or false, got ", found->second.text());
      factor.restart = *found->second.as<bool>();
    }
    const bool ends = factor.shape == Shape::cosine || factor.shape == Shape::linear;
    if (ends && factor.steps == 0) {
      require(total > 0, "train.schedule: ", name,
              " needs steps, because the training has no number of steps");
      require(static_cast<double>(total) > factor.start, "train.schedule: ", name,
              " begins at step ", factor.start, ", but the training has only ", total,
              " steps; raise train.steps or give ", name, " another start");
      factor.steps = static_cast<double>(total) - factor.start;
      ends_with_training_ = true;
    }
    const bool counts = factor.shape == Shape::warmup || factor.shape == Shape::halving;
    require(!counts || factor.steps > 0, "train.schedule: ", name, " needs steps");
    const bool scaled = factor.shape == Shape::rsqrt_scaled;
    require(!scaled || factor.start > 0, "train.schedule: ", name, " needs a start");
    factors_.push_back(factor);
  }
}

double Schedule::at(const Factor& factor, double step) {
  const double part = factor.steps > 0 ? (step - factor.start) / factor.steps : 0;
  const double way =
      factor.restart ? std::fmod(std::max(part, 0.0), 1.0) : std::clamp(part, 0.0, 1.0);
  const auto between = [&](double x) { return factor.floor + (1 - factor.floor) * x; };
  switch (factor.shape) {
    case Shape::constant: return 1;
    case Shape::warmup: return between(std::min(1.0, step / factor.steps));
    case Shape::rsqrt:
      return std::max(factor.floor, 1 / std::sqrt(std::max({step, factor.start, 1.0})));
    case Shape::rsqrt_scaled:
      return std::max(factor.floor,
                      std::sqrt(factor.start / std::max(step, factor.start)));
    case Shape::cosine: return between(0.5 * (1 + std::cos(std::numbers::pi * way)));
    case Shape::linear: return between(1 - way);
    case Shape::halving:
      return std::max(factor.floor,
                      std::pow(factor.factor, std::floor(step / factor.steps)));
  }
  return 1;
}

double Schedule::at(int64_t step) const {
  double rate = rate_;
  for (const Factor& factor : factors_) rate *= at(factor, static_cast<double>(step));
  return rate;
}

}  // namespace longspan
