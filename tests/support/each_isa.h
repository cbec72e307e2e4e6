// Tests that run once for every instruction set of this CPU.

#pragma once

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "longspan/kernels/cpu/isa.h"

namespace longspan::testing {

class EachIsa : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > cpu::best_isa())
      GTEST_SKIP() << "no " << name(GetParam()) << " on this CPU";
    using_.emplace(GetParam());
  }

 private:
  std::optional<cpu::UseIsa> using_;
};

}  // namespace longspan::testing
