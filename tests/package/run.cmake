# The installed package as its users use it. Every step must succeed and every consumer print the right number.

cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

find_program(PKG_CONFIG pkg-config)
if(NOT PKG_CONFIG)
  message(FATAL_ERROR "pkg-config is missing; install Debian's package pkg-config")
endif()

file(REMOVE_RECURSE "${SCRATCH}")
file(MAKE_DIRECTORY "${SCRATCH}")
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${SCRATCH}/installed")
set(prefix "${SCRATCH}/moved")
file(RENAME "${SCRATCH}/installed" "${prefix}")
file(GLOB_RECURSE hooks "${prefix}/${INCLUDEDIR}/*sabotage*")
if(hooks)
  message(FATAL_ERROR "test hooks are installed: ${hooks}")
endif()
file(GLOB programs "${prefix}/${BINDIR}/*")
foreach(program IN ITEMS headwater headwater-conformance)
  if(NOT "${prefix}/${BINDIR}/${program}" IN_LIST programs)
    message(FATAL_ERROR "${program} is not installed")
  endif()
endforeach()
run("${prefix}/${BINDIR}/headwater" --version)
if(BENCH)
  run("${prefix}/${BINDIR}/headwater" bench --help)
endif()

# CMake.
run(${CMAKE_COMMAND} -S "${SOURCE_DIR}/project" -B "${SCRATCH}/build" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}")
run(${CMAKE_COMMAND} --build "${SCRATCH}/build")
foreach(program IN ITEMS cpp_headwater cpp_headwater_shared c_headwater c_headwater_shared)
  run_consumer("${SCRATCH}/build/${program}")
endforeach()

# CMake, a project with C alone.
run(${CMAKE_COMMAND} -S "${SOURCE_DIR}/c_project" -B "${SCRATCH}/c_build" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_C_COMPILER=${CC}")
run(${CMAKE_COMMAND} --build "${SCRATCH}/c_build")
foreach(program IN ITEMS c_headwater c_headwater_shared)
  run_consumer("${SCRATCH}/c_build/${program}")
endforeach()

# One version for the preprocessor, pkg-config and the loader. Its minor number breaks programs in C++, so the loader must
# not take one library for another: it is in the SONAME.
file(STRINGS "${prefix}/${INCLUDEDIR}/headwater/version.h" lines REGEX "^#define HEADWATER_VERSION_[MP].* [0-9]+$")
string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
list(GET numbers 0 major)
list(GET numbers 1 minor)
list(JOIN numbers "." version)
run(${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${prefix}/${LIBDIR}/pkgconfig" "${PKG_CONFIG}" --modversion headwater)
string(STRIP "${output}" output)
if(NOT output STREQUAL version)
  message(FATAL_ERROR "headwater.pc says version ${output}, headwater/version.h ${version}")
endif()
run("${READELF}" -d "${prefix}/${LIBDIR}/libheadwater.so")
if(NOT output MATCHES "SONAME[^\n]*\\[libheadwater\\.so\\.${major}\\.${minor}\\]")
  message(FATAL_ERROR "SONAME is not libheadwater.so.${major}.${minor}:\n${output}")
endif()

# pkg-config, from C.
set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
run("${PKG_CONFIG}" --cflags --libs headwater)
separate_arguments(shared UNIX_COMMAND "${output}")
run("${CC}" "${SOURCE_DIR}/consumer.c" -o "${SCRATCH}/shared" ${shared})
run_consumer(${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${prefix}/${LIBDIR}" "${SCRATCH}/shared")
if(COMPILER_ID STREQUAL "GNU")  # Debian has no static libomp for clang
  run("${PKG_CONFIG}" --static --cflags --libs headwater)
  separate_arguments(static UNIX_COMMAND "${output}")
  run("${CC}" -static "${SOURCE_DIR}/consumer.c" -o "${SCRATCH}/static" ${static})
  run_consumer("${SCRATCH}/static")
endif()

# The model runtime, from C++: the consumer writes what the program writes.
if(RUNTIME)
  set(folder "${prefix}/${INCLUDEDIR}/headwater-runtime")
  file(GLOB_RECURSE headers RELATIVE "${folder}" "${folder}/*")
  foreach(header IN LISTS headers)
    file(STRINGS "${folder}/${header}" includes REGEX "^ *# *include")
    foreach(line IN LISTS includes)
      if(line MATCHES "\"(runtime/[^\"]+)\"")
        if(NOT "${CMAKE_MATCH_1}" IN_LIST headers)
          message(FATAL_ERROR "${header} includes ${CMAKE_MATCH_1}, which is not installed")
        endif()
      elseif(NOT line MATCHES "\"headwater/[^\"]+\"" AND NOT line MATCHES "<[a-z_]+>")
        message(FATAL_ERROR "${header} shows a header that is neither its own nor standard: ${line}")
      endif()
    endforeach()
  endforeach()
  set(model "${MODELS}/headwater-tiny-f16.gguf")
  set(prompt "def mean(values):\n    return")
  run("${prefix}/${BINDIR}/headwater" generate -m "${model}" -p "${prompt}" -n 32 --projections f32 --cache-type f16)
  set(wanted "${output}")
  function(run_generate program)
    run(${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${prefix}/${LIBDIR}" "${program}" "${model}" "${prompt}")
    if(NOT output STREQUAL wanted)
      message(FATAL_ERROR "${program} wrote:\n${output}\nheadwater generate:\n${wanted}")
    endif()
  endfunction()
  run(${CMAKE_COMMAND} -S "${SOURCE_DIR}/runtime_project" -B "${SCRATCH}/runtime_build" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}")
  run(${CMAKE_COMMAND} --build "${SCRATCH}/runtime_build")
  run_generate("${SCRATCH}/runtime_build/generate")
  run("${PKG_CONFIG}" --cflags --libs headwater-runtime)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run("${CXX}" -std=c++20 "${SOURCE_DIR}/generate.cpp" -o "${SCRATCH}/generate" ${flags})
  run_generate("${SCRATCH}/generate")

  # Its C ABI.
  run_generate("${SCRATCH}/c_build/c_runtime")
  run("${PKG_CONFIG}" --cflags --libs headwater-runtime-c)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run("${CC}" "${SOURCE_DIR}/runtime.c" "${SOURCE_DIR}/../runtime_c_abi/generate.c" -o "${SCRATCH}/c_runtime" ${flags})
  run_generate("${SCRATCH}/c_runtime")

  # A package that was built without it says so.
  file(REMOVE "${prefix}/${LIBDIR}/cmake/headwater/headwaterRuntimeTargets.cmake")
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${SOURCE_DIR}/runtime_project" -B "${SCRATCH}/no_runtime"
    -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}"
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE errors)
  if(status EQUAL 0 OR NOT errors MATCHES "built +without +its +model +runtime")
    message(FATAL_ERROR "component runtime of a package without it (${status}):\n${errors}")
  endif()
endif()
