// For the sources that read YAML; not part of the library's interface.

#pragma once

#include <yaml-cpp/yaml.h>

#include "longspan/base/value.h"

namespace longspan {

Value from_yaml(const YAML::Node& node);

}  // namespace longspan
