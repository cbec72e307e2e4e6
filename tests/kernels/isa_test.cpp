#include "longspan/kernels/cpu/isa.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using cpu::asked_isa;
using cpu::Isa;

TEST(Isa, IsTheOneAskedFor) {
  for (const Isa isa : cpu::kAllIsas)
    EXPECT_EQ(asked_isa(name(isa), Isa::avx512_bf16), isa);
}

TEST(Isa, NamesTheChoices) {
  EXPECT_EQ(refusal([] { asked_isa("sse9", Isa::avx2); }),
            "LONGSPAN_ISA=sse9: no such instruction set; there are: portable, avx2, "
            "avx512, avx512_bf16");
}

TEST(Isa, IsRefusedWhereTheCpuHasItNot) {
  EXPECT_EQ(refusal([] { asked_isa("avx512", Isa::avx2); }),
            "LONGSPAN_ISA=avx512: this CPU stops at avx2");
}

TEST(Isa, CanBeLessThanTheBestForAWhile) {
  const Isa before = cpu::isa();
  {
    const cpu::UseIsa lesser(Isa::portable);
    EXPECT_EQ(cpu::isa(), Isa::portable);
  }
  EXPECT_EQ(cpu::isa(), before);
}

int one() { return 1; }
int two() { return 2; }
int three() { return 3; }
int four() { return 4; }

TEST(Isa, PicksItsVersionOfAKernel) {
  for (const Isa isa : cpu::kAllIsas) {
    if (isa > cpu::best_isa()) continue;
    const cpu::UseIsa using_it(isa);
    const int number = 1 + static_cast<int>(isa);
    EXPECT_EQ(cpu::pick(one, two, three, four)(), number);
    EXPECT_EQ(cpu::pick(one, two, three)(), std::min(number, 3));
  }
}

}  // namespace
}  // namespace longspan::testing
