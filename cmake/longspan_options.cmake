# Warnings and sanitizers, for this project's own targets only.
add_library(longspan_options INTERFACE)
target_compile_options(longspan_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  # GCC 13 reports these falsely inside LibTorch's autograd::Function.
  -Wno-array-bounds -Wno-stringop-overflow
  # GCC 12 reports this falsely where strings are joined.
  -Wno-restrict
  $<$<BOOL:${LONGSPAN_WERROR}>:-Werror>)
if(LONGSPAN_SANITIZE)
  target_compile_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all
                         # Instrumented code misleads this warning.
                         -Wno-maybe-uninitialized)
  target_link_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE})
endif()
