#include "longspan/base/flops.h"

namespace longspan {
namespace {

thread_local int64_t counted = 0;
thread_local int inside = 0;

}  // namespace

int64_t flops_counted() { return counted; }

Flops::Flops(int64_t flops) {
  if (inside++ == 0) counted += flops;
}

Flops::~Flops() { --inside; }

}  // namespace longspan
