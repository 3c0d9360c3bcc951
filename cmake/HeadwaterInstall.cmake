# What `cmake --install` puts under a prefix: libheadwater.a and .so, libheadwater-runtime.a and .so where they were built, the
# headers, the programs, and what find_package(headwater) and pkg-config need. Everything is relative to where it lies, so
# the prefix can be moved.

include(CMakePackageConfigHelpers)

# headwater_product builds all that is installed. Where a part of it is lacking, the first rule installs nothing.
set(programs "")
foreach(program IN ITEMS headwater_cli headwater-conformance)
  if(TARGET ${program})
    list(APPEND programs ${program})
  endif()
endforeach()
set(product headwater headwater_shared ${programs})
if(HEADWATER_HAS_RUNTIME)
  list(APPEND product headwater_runtime_archive headwater_runtime_shared)
endif()
if(HEADWATER_HAS_MPI)
  list(APPEND product headwater_mpi)
endif()
add_custom_target(headwater_product)
add_dependencies(headwater_product ${product})
set(files "$<TARGET_SONAME_FILE:headwater_shared>" "$<TARGET_LINKER_FILE:headwater_shared>")  # names of the library
foreach(target IN LISTS product)
  list(APPEND files "$<TARGET_FILE:${target}>")
endforeach()
if(HEADWATER_HAS_RUNTIME)
  list(APPEND files "$<TARGET_SONAME_FILE:headwater_runtime_shared>" "$<TARGET_LINKER_FILE:headwater_runtime_shared>")
endif()
list(JOIN files "\" \"" files)
install(CODE "
  foreach(file IN ITEMS \"${files}\")
    if(NOT EXISTS \"\${file}\" AND NOT CMAKE_INSTALL_COMPONENT STREQUAL \"wheel\")
      message(FATAL_ERROR \"nothing is installed: \${file} is not built; build the target headwater_product first\")
    endif()
  endforeach()" ALL_COMPONENTS)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/headwater")
set(libraries headwater headwater_shared)
if(HEADWATER_HAS_RUNTIME)
  list(APPEND libraries headwater_runtime_shared)  # for C: it needs no package, as headwater::runtime does
endif()
install(TARGETS ${libraries} EXPORT headwater
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT headwater
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT headwater)
install(DIRECTORY include/headwater DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT headwater
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN testing EXCLUDE)
install(EXPORT headwater NAMESPACE headwater:: FILE headwaterTargets.cmake DESTINATION "${package_dir}"
  COMPONENT headwater)
if(HEADWATER_CUDA_FOUND)
  # The CUDA runtime is installed, too, so that a static link needs no toolkit.
  set(HEADWATER_CUDART_INSTALLED "${CMAKE_INSTALL_LIBDIR}/headwater/libcudart_static.a")
  install(FILES "${HEADWATER_CUDART}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/headwater" COMPONENT headwater)
endif()
configure_package_config_file(cmake/headwaterConfig.cmake.in "${PROJECT_BINARY_DIR}/headwaterConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/headwaterConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/headwaterConfig.cmake" "${PROJECT_BINARY_DIR}/headwaterConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT headwater)

# headwater.pc: the relative path from its folder to the prefix, and the libraries that a static link needs besides.
file(RELATIVE_PATH HEADWATER_PC_PREFIX
  "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
set(HEADWATER_PC_OPENMP "")  # of the runtime, too
foreach(library IN LISTS OpenMP_CXX_LIB_NAMES)
  string(APPEND HEADWATER_PC_OPENMP " -l${library}")
endforeach()
set(HEADWATER_PC_THREADS "${HEADWATER_PC_OPENMP}")
if(HEADWATER_THREADS STREQUAL "team")
  set(HEADWATER_PC_THREADS " -lpthread")
endif()
set(HEADWATER_PC_PRIVATE "-lstdc++ -lm${HEADWATER_PC_THREADS}")
if(HEADWATER_CUDA_FOUND)
  set(needs ${HEADWATER_CUDART_NEEDS} pthread)
  list(TRANSFORM needs PREPEND " -l")
  list(JOIN needs "" needs)
  string(APPEND HEADWATER_PC_PRIVATE " \${libdir}/headwater/libcudart_static.a${needs}")
endif()
configure_file(cmake/headwater.pc.in "${PROJECT_BINARY_DIR}/headwater.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/headwater.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
  COMPONENT headwater)

# The model runtime: a target of the package, found where its component is requested.
if(HEADWATER_HAS_RUNTIME)
  install(TARGETS headwater_runtime_archive EXPORT headwaterRuntime
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT headwater
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/headwater-runtime" COMPONENT headwater)
  install(EXPORT headwaterRuntime NAMESPACE headwater:: FILE headwaterRuntimeTargets.cmake
    DESTINATION "${package_dir}" COMPONENT headwater)
  # headwater-runtime.pc: the classes, from C++. headwater-runtime-c.pc: the C ABI.
  foreach(name IN ITEMS headwater-runtime headwater-runtime-c)
    configure_file(cmake/${name}.pc.in "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT headwater)
  endforeach()
endif()

if(HEADWATER_HAS_MPI)
  # What the program loads under mpirun; nobody links it.
  install(TARGETS headwater_mpi LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/headwater" COMPONENT headwater)
endif()

if(HEADWATER_PROGRAM)
  install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT headwater)
  # The programs print completion and manual when they are installed, so both fit what was built.
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/install_shell.cmake" INPUT cmake/HeadwaterShell.cmake.in)
  install(CODE "set(headwater_shell \"${PROJECT_BINARY_DIR}/shell\")" COMPONENT headwater)
  install(SCRIPT "${PROJECT_BINARY_DIR}/install_shell.cmake" COMPONENT headwater)
endif()
install(FILES LICENSE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT headwater)

# What the Python package loads, and nothing else: component `wheel`, for pyproject.toml. A wheel holds no links, so each
# library is one file, named as the loader looks for it.
set(wheel headwater_shared)
if(TARGET headwater_runtime_shared)
  list(APPEND wheel headwater_runtime_shared)
  # Under its own name: where PyTorch's libgomp.so.1 is in the process, the loader takes that one, else this.
  if(OpenMP_gomp_LIBRARY)
    file(REAL_PATH "${OpenMP_gomp_LIBRARY}" gomp)
    install(FILES "${gomp}" DESTINATION headwater/lib RENAME libgomp.so.1 COMPONENT wheel EXCLUDE_FROM_ALL)
  endif()
endif()
add_custom_target(headwater_wheel)
add_dependencies(headwater_wheel ${wheel})
foreach(target IN LISTS wheel)
  install(CODE "
    file(INSTALL \"$<TARGET_FILE:${target}>\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/headwater/lib\"
      RENAME \"$<TARGET_SONAME_FILE_NAME:${target}>\")" COMPONENT wheel EXCLUDE_FROM_ALL)
endforeach()
