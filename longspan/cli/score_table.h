// Scores beside what guessing gives.

#pragma once

#include <string>
#include <vector>

#include "longspan/tasks/task.h"
#include "longspan/train/trainer.h"

namespace longspan::cli {

// The accuracy with its standard error, what the score means in the terms of the task,
// then the references.
void print_scores(const std::string& title, const Score& score,
                  const Measures& measures, const std::vector<Reference>& references);

}  // namespace longspan::cli
