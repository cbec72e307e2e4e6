#include "longspan/kernels/cpu/isa.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "longspan/base/error.h"
#include "longspan/base/words.h"

namespace longspan::cpu {
namespace {

std::optional<Isa> forced;  // by a UseIsa

}  // namespace

const char* name(Isa isa) {
  switch (isa) {
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    case Isa::portable: break;
  }
  return "portable";
}

Isa best_isa() {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    return Isa::portable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return Isa::avx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
#else
  return Isa::portable;
#endif
}

Isa asked_isa(std::string_view asked, Isa best) {
  std::vector<std::string> names;
  for (const Isa isa : kAllIsas) {
    names.emplace_back(name(isa));
    if (asked != name(isa)) continue;
    require(isa <= best, "LONGSPAN_ISA=", asked, ": this CPU stops at ", name(best));
    return isa;
  }
  fail("LONGSPAN_ISA=", asked, ": no such instruction set", hint(asked, names));
}

Isa isa() {
  if (forced) return *forced;
  static const Isa usual = [] {
    const char* asked = std::getenv("LONGSPAN_ISA");
    return asked && *asked ? asked_isa(asked, best_isa()) : best_isa();
  }();
  return usual;
}

UseIsa::UseIsa(Isa isa) : before_(forced) {
  require(isa <= best_isa(), "cannot run ", name(isa), " here: this CPU stops at ",
          name(best_isa()));
  forced = isa;
}

UseIsa::~UseIsa() { forced = before_; }

}  // namespace longspan::cpu
