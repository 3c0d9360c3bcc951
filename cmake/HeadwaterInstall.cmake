# What `cmake --install` puts under a prefix: libheadwater.a and .so, libheadwater-runtime.a where it was built, the
# headers, the programs, and what find_package(headwater) and pkg-config need. Everything is relative to where it lies, so
# the prefix can be moved.

include(CMakePackageConfigHelpers)

# libheadwater.so: the same objects; exports what HEADWATER_API marks.
add_library(headwater_shared SHARED)
foreach(part IN LISTS HEADWATER_PARTS)
  target_sources(headwater_shared PRIVATE $<TARGET_OBJECTS:${part}>)
endforeach()
# The C++ classes may change with every minor version, so its number is in the SONAME, as SameMinorVersion says below.
set_target_properties(headwater_shared PROPERTIES OUTPUT_NAME headwater LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_include_directories(headwater_shared PUBLIC
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(headwater_shared PRIVATE
  $<BUILD_INTERFACE:OpenMP::OpenMP_CXX> $<BUILD_INTERFACE:Threads::Threads> $<BUILD_INTERFACE:headwater_flags>)
if(HEADWATER_CUDA_FOUND)
  headwater_link_cuda(headwater_shared)
  target_link_libraries(headwater_shared PRIVATE $<BUILD_INTERFACE:headwater_cudart>)
  # The runtime inside is nobody else's business: a program may have another one.
  target_link_options(headwater_shared PRIVATE "LINKER:--exclude-libs,libcudart_static.a")
endif()
target_compile_features(headwater INTERFACE cxx_std_20)
target_compile_features(headwater_shared INTERFACE cxx_std_20)

# headwater_product builds all that is installed. Where a part of it is lacking, the first rule installs nothing.
set(programs headwater_cli)
if(TARGET headwater-conformance)
  list(APPEND programs headwater-conformance)
endif()
set(product headwater headwater_shared ${programs})
if(HEADWATER_HAS_RUNTIME)
  list(APPEND product headwater_runtime_archive)
endif()
add_custom_target(headwater_product)
add_dependencies(headwater_product ${product})
set(files "$<TARGET_SONAME_FILE:headwater_shared>" "$<TARGET_LINKER_FILE:headwater_shared>")  # names of the library
foreach(target IN LISTS product)
  list(APPEND files "$<TARGET_FILE:${target}>")
endforeach()
list(JOIN files "\" \"" files)
install(CODE "
  foreach(file IN ITEMS \"${files}\")
    if(NOT EXISTS \"\${file}\")
      message(FATAL_ERROR \"nothing is installed: \${file} is not built; build the target headwater_product first\")
    endif()
  endforeach()" ALL_COMPONENTS)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/headwater")
install(TARGETS headwater headwater_shared EXPORT headwater
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT headwater
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT headwater)
install(DIRECTORY include/headwater DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT headwater
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN testing EXCLUDE)
install(EXPORT headwater NAMESPACE headwater:: FILE headwaterTargets.cmake DESTINATION "${package_dir}"
  COMPONENT headwater)
if(HEADWATER_CUDA_FOUND)
  # The runtime of the device is taken along, so that a static link needs no toolkit.
  set(HEADWATER_CUDART_INSTALLED "${CMAKE_INSTALL_LIBDIR}/headwater/libcudart_static.a")
  install(FILES "${HEADWATER_CUDART}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/headwater" COMPONENT headwater)
endif()
configure_package_config_file(cmake/headwaterConfig.cmake.in "${CMAKE_BINARY_DIR}/headwaterConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/headwaterConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/headwaterConfig.cmake" "${CMAKE_BINARY_DIR}/headwaterConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT headwater)

# headwater.pc: the way from its own folder back to the prefix, and what a static link needs besides.
file(RELATIVE_PATH HEADWATER_PC_PREFIX
  "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
set(HEADWATER_PC_OPENMP "")
foreach(library IN LISTS OpenMP_CXX_LIB_NAMES)
  string(APPEND HEADWATER_PC_OPENMP " -l${library}")
endforeach()
set(HEADWATER_PC_PRIVATE "-lstdc++ -lm${HEADWATER_PC_OPENMP}")
if(HEADWATER_CUDA_FOUND)
  set(needs ${HEADWATER_CUDART_NEEDS} pthread)
  list(TRANSFORM needs PREPEND " -l")
  list(JOIN needs "" needs)
  string(APPEND HEADWATER_PC_PRIVATE " \${libdir}/headwater/libcudart_static.a${needs}")
endif()
configure_file(cmake/headwater.pc.in "${CMAKE_BINARY_DIR}/headwater.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/headwater.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
  COMPONENT headwater)

# The model runtime: a target of the package, found where its component is asked for.
if(HEADWATER_HAS_RUNTIME)
  install(TARGETS headwater_runtime_archive EXPORT headwaterRuntime
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT headwater
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/headwater-runtime" COMPONENT headwater)
  install(EXPORT headwaterRuntime NAMESPACE headwater:: FILE headwaterRuntimeTargets.cmake
    DESTINATION "${package_dir}" COMPONENT headwater)
  configure_file(cmake/headwater-runtime.pc.in "${CMAKE_BINARY_DIR}/headwater-runtime.pc" @ONLY)
  install(FILES "${CMAKE_BINARY_DIR}/headwater-runtime.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
    COMPONENT headwater)
endif()

install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT headwater)
# Completion and manual come out of the programs themselves, asked when they are installed: whatever was built.
file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/install_shell.cmake" INPUT cmake/HeadwaterShell.cmake.in)
install(CODE "set(headwater_shell \"${CMAKE_BINARY_DIR}/shell\")" COMPONENT headwater)
install(SCRIPT "${CMAKE_BINARY_DIR}/install_shell.cmake" COMPONENT headwater)
install(FILES LICENSE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT headwater)
