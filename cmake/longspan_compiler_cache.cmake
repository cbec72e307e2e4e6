# Uses ccache when it is there; precompiled headers need it to be lenient about times.
find_program(LONGSPAN_CCACHE ccache)
if(LONGSPAN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${LONGSPAN_CCACHE})
endif()
