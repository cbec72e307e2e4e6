// What `longspan bench attention` measured, as a table, as JSON and as a picture.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "longspan/attention/mechanism.h"
#include "longspan/cli/attention_layer.h"
#include "longspan/cli/attention_speed.h"
#include "longspan/report/chart.h"

namespace longspan::cli {

// A mechanism to measure, and what came of it.
struct Candidate {
  const Mechanism& mechanism;
  Value::Map given = {};     // settings that replace the standard ones
  Value::Map settings = {};  // all
  std::vector<AttentionSpeed> speeds = {};

  bool is_dense() const { return &mechanism == &catalogue::dense; }
  std::string name() const;  // "sliding {window: 128}"
};

// "forward, causal; batch 1, 8 heads of 64, float on cpu, 2 threads"
std::string words(const AttentionSetup& setup);

// Prints each line as soon as it is known.
class AttentionReport {
 public:
  enum class Style { table, json };

  AttentionReport(const AttentionSetup& setup, const std::vector<Candidate>& candidates,
                  Style style);

  // At one length, or at all if it is 0.
  void refused(const Candidate& candidate, int64_t length,
               const std::string& reason) const;
  // The last of the speeds.
  void speed(const Candidate& candidate) const;
  void growth(const Candidate& candidate) const;

 private:
  nlohmann::ordered_json common(const Candidate& candidate) const;
  void print_name(const std::string& name) const;

  const AttentionSetup& setup_;
  Style style_;
  size_t name_width_ = 0;
};

// Time and memory over length.
report::Chart attention_chart(const AttentionSetup& setup,
                              const std::vector<Candidate>& candidates);

}  // namespace longspan::cli
