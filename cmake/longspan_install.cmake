include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/longspan)

install(TARGETS longspan EXPORT longspanTargets
        FILE_SET HEADERS FILE_SET lists FILE_SET generated)
install(EXPORT longspanTargets NAMESPACE longspan:: DESTINATION ${config_dir})
if(TARGET longspan_sentencepiece)
  install(TARGETS longspan_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS longspan_ops LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(LONGSPAN_PROGRAM)
  install(TARGETS longspan_program)
endif()

configure_package_config_file(cmake/longspanConfig.cmake.in longspanConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(longspanConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/longspanConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/longspanConfigVersion.cmake
              cmake/longspan_dependencies.cmake
        DESTINATION ${config_dir})
