# The installed package, as its users meet it. Every step must succeed and every consumer print the right number.

cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nfailed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# A consumer averages values that are all one half.
function(run_consumer)
  run(${ARGN})
  if(NOT output MATCHES "last output 0\\.5000\n")
    message(FATAL_ERROR "${ARGN} printed: ${output}")
  endif()
endfunction()

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
set(wanted headwater headwater-conformance)
if(BENCH)
  list(APPEND wanted headwater-bench)
endif()
foreach(program IN LISTS wanted)
  if(NOT "${prefix}/${BINDIR}/${program}" IN_LIST programs)
    message(FATAL_ERROR "${program} is not installed")
  endif()
endforeach()
run("${prefix}/${BINDIR}/headwater" --version)

# CMake.
run(${CMAKE_COMMAND} -S "${SOURCE_DIR}/project" -B "${SCRATCH}/build" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}")
run(${CMAKE_COMMAND} --build "${SCRATCH}/build")
foreach(program IN ITEMS cpp_headwater cpp_headwater_shared c_headwater c_headwater_shared)
  run_consumer("${SCRATCH}/build/${program}")
endforeach()

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
