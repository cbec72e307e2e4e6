// The tasks there are; used by tasks alone.

#pragma once

#include "longspan/tasks/task.h"

namespace longspan {

struct TaskKind {
  std::string_view name;
  Task (*open)(const TaskOptions&);
  Task (*outline)(const TaskOptions&);
  Task (*restore)(const TaskOptions&, const std::string& labels,
                  const std::string& vocabulary);
  std::shared_ptr<const Dataset> (*read)(const Task&, const TaskOptions&,
                                         const std::string& path);
};

extern const TaskKind kListOps, kClassify, kImdb, kRetrieval, kCifar10, kPathfinder,
    kText;

// The path of a task's file: as it is where it begins with /, else in options.data.
std::string in_data(const TaskOptions& options, const std::string& file);

}  // namespace longspan
