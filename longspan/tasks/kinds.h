// The tasks there are; used by task.cpp alone.

#pragma once

#include "longspan/tasks/task.h"

namespace longspan {

struct TaskKind {
  std::string_view name;
  Task (*open)(const TaskOptions&);
  Task (*outline)(const TaskOptions&);
  Task (*restore)(const TaskOptions&, const std::string& labels,
                  const std::string& vocabulary);
  Examples (*read)(const Task&, const TaskOptions&, const std::string& path);
  // For tasks without labels, in place of read.
  std::shared_ptr<const Dataset> (*read_text)(const Task&, const TaskOptions&,
                                              const std::string& path) = nullptr;
};

extern const TaskKind kListOps, kClassify, kText;

// The path of a task's file: as it is where it begins with /, else in options.data.
std::string in_data(const TaskOptions& options, const std::string& file);

}  // namespace longspan
