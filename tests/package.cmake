cmake_minimum_required(VERSION 3.25)

# Installs the package and lets a stranger use it: the examples, built against the
# installed files alone.
set(prefix ${BUILD}/package/prefix)
file(REMOVE_RECURSE ${BUILD}/package)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE exported ${prefix}/*.cmake)
foreach(file IN LISTS exported)
  file(STRINGS ${file} leaks REGEX "${ROOT}/(longspan|build)")
  if(leaks)
    message(SEND_ERROR "${file} names the source or build folder: ${leaks}")
  endif()
endforeach()
# Builds an example against the installed package and runs it; sets `printed`.
function(run_example name)
  set(folder ${BUILD}/package/${name})
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${ROOT}/examples/${name} -B ${folder}
                  -G ${GENERATOR} -D CMAKE_BUILD_TYPE=${CONFIG}
                  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix}
                  -D Torch_DIR=${TORCH}
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${folder}
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${folder}/${name} ${ARGN} OUTPUT_VARIABLE out ERROR_QUIET
                  COMMAND_ERROR_IS_FATAL ANY)
  set(printed "${out}" PARENT_SCOPE)
endfunction()

run_example(training ${BUILD}/package/run)
if(NOT printed MATCHES "right on new sequences: [0-9.]+ %")
  message(FATAL_ERROR "the training printed:\n${printed}")
endif()
run_example(consumer)
if(NOT printed MATCHES "dense attention: \\[2, 4, 10, 16\\]")
  message(FATAL_ERROR "the consumer printed:\n${printed}")
endif()
execute_process(COMMAND ${prefix}/bin/longspan --version OUTPUT_VARIABLE printed
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT printed MATCHES "^longspan [0-9]")
  message(FATAL_ERROR "the installed program printed:\n${printed}")
endif()
