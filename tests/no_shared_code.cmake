cmake_minimum_required(VERSION 3.25)

# Fails when an object compiled for one instruction set defines a symbol the linker may
# use for all.
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects to look at")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
  if(shared)
    list(JOIN shared "\n  " text)
    message(SEND_ERROR "${object} shares:\n  ${text}")
  endif()
endforeach()
