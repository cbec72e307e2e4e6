// That results are the same bits whatever the number of threads.

#pragma once

#include <functional>

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {

inline ::testing::AssertionResult same_with_any_threads(
    const std::function<Tensors()>& results) {
  const auto with = [&](int count) {
    const UseThreads threads(count);
    return results();
  };
  const Tensors one = with(1);
  for (const int count : {2, 3}) {
    const Tensors many = with(count);
    for (size_t i = 0; i < one.size(); ++i)
      if (!torch::equal(one[i], many[i]))
        return ::testing::AssertionFailure()
               << "result " << i << " has other bits with " << count << " threads";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace longspan::testing
