// Which instruction set the CPU kernels run with.

#pragma once

#include <optional>
#include <string_view>

namespace longspan::cpu {

// Each has all of those before it.
enum class Isa { portable, avx2, avx512, avx512_bf16 };

inline constexpr Isa kAllIsas[] = {Isa::portable, Isa::avx2, Isa::avx512,
                                   Isa::avx512_bf16};

const char* name(Isa isa);

// The best this CPU has.
Isa best_isa();

// The one that LONGSPAN_ISA=`asked` means on a CPU that has `best`.
Isa asked_isa(std::string_view asked, Isa best);

// The one in use: that of a living UseIsa, else of LONGSPAN_ISA, else best_isa().
Isa isa();

// Runs the kernels with a lesser instruction set while it lives. For tests and
// benchmarks; not for two threads at once.
class UseIsa {
 public:
  explicit UseIsa(Isa isa);
  ~UseIsa();
  UseIsa(const UseIsa&) = delete;
  UseIsa& operator=(const UseIsa&) = delete;

 private:
  std::optional<Isa> before_;
};

// Of the versions of one kernel, that of isa().
template <class Kernel>
Kernel* pick(Kernel* portable, Kernel* avx2, Kernel* avx512, Kernel* avx512_bf16) {
  switch (isa()) {
    case Isa::avx512_bf16: return avx512_bf16;
    case Isa::avx512: return avx512;
    case Isa::avx2: return avx2;
    case Isa::portable: break;
  }
  return portable;
}

// The same for a kernel that has no use for bf16 instructions.
template <class Kernel>
Kernel* pick(Kernel* portable, Kernel* avx2, Kernel* avx512) {
  return pick(portable, avx2, avx512, avx512);
}

}  // namespace longspan::cpu
