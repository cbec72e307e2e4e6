# What the library stands on; read by this build and by the installed package.
if(LONGSPAN_TORCH)
  list(PREPEND CMAKE_PREFIX_PATH ${LONGSPAN_TORCH} ${LONGSPAN_TORCH}/share/cmake)
endif()
find_package(Torch REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp)  # its name since yaml-cpp 0.8
  add_library(yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp INTERFACE yaml-cpp::yaml-cpp)
endif()
