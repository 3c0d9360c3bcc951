# The targets of the project and what every one of them is compiled with.
#
# Each part is an object library built twice where tests are built: as shipped, and as `<part>_testing` with the
# test hooks of include/headwater/testing (HEADWATER_TESTING). A part sees include/ and what it is linked to.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# An embedding project chooses how it is built.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  find_program(HEADWATER_CCACHE ccache)
  if(HEADWATER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${HEADWATER_CCACHE}")
    set(CMAKE_C_COMPILER_LAUNCHER "${HEADWATER_CCACHE}")
  endif()
endif()

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
# headwater_threads: what optimized/cpu/own_threads.hpp runs on, the one thing of it that libheadwater.so links.
add_library(headwater_threads INTERFACE)
if(HEADWATER_THREADS STREQUAL "team")
  target_link_libraries(headwater_threads INTERFACE Threads::Threads)
  set(HEADWATER_THREADS_LIBRARIES pthread)
else()
  target_link_libraries(headwater_threads INTERFACE OpenMP::OpenMP_CXX)
  set(HEADWATER_THREADS_LIBRARIES ${OpenMP_CXX_LIB_NAMES})
endif()

# Flags of every target: warnings, the baseline ISA, and no contraction, so that one expression has one value
# whatever the compiler (bit-identity across blocks and schedules rests on it).
add_library(headwater_flags INTERFACE)
target_compile_options(headwater_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Wcast-qual
  -Wformat=2 -Wundef -Wimplicit-fallthrough
  -march=x86-64-v2 -ffp-contract=off)
# C has no virtual destructors to warn about.
get_target_property(flags headwater_flags INTERFACE_COMPILE_OPTIONS)
list(TRANSFORM flags REPLACE "^-Wnon-virtual-dtor$" "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>")
set_target_properties(headwater_flags PROPERTIES INTERFACE_COMPILE_OPTIONS "${flags}")
# The threads of Eigen's products wait actively for each other, also where one of them has no core.
target_compile_definitions(headwater_flags INTERFACE EIGEN_DONT_PARALLELIZE)
if(HEADWATER_WERROR)
  target_compile_options(headwater_flags INTERFACE -Werror)
endif()
if(HEADWATER_SANITIZE)
  # Kit and tests (headwater_judges) have no undefined: it doubles the time that their templates take the compiler.
  string(REPLACE "," "$<COMMA>" all "${HEADWATER_SANITIZE}")
  string(REPLACE ",undefined" "" judges "${HEADWATER_SANITIZE}")
  string(REPLACE "," "$<COMMA>" judges "${judges}")
  target_compile_options(headwater_flags INTERFACE
    -fsanitize=$<IF:$<BOOL:$<TARGET_PROPERTY:HEADWATER_JUDGES>>,${judges},${all}>
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(headwater_flags INTERFACE -fsanitize=${HEADWATER_SANITIZE})
endif()
if(HEADWATER_COVERAGE)
  target_link_options(headwater_flags INTERFACE --coverage)
endif()

# The public API: headers only.
add_library(headwater_api INTERFACE)
target_include_directories(headwater_api INTERFACE "${PROJECT_SOURCE_DIR}/include")

# Presets asan and tsan unite up to eight files of a part that is shipped into one (CMAKE_UNITY_BUILD), so that the compiler reads
# headers once; so are the testing twins of every build. Elsewhere each file is compiled alone, as users do, which shows that it
# includes what it needs: parts in preset release, kit and tests, which g++ reads with precompiled headers, in preset tsan.

# headwater_alone(FILE...): never united. They use names that other files of their target use for something else, unless a comment
# says otherwise.
function(headwater_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# headwater_judges(TARGET): it drives and judges what is shipped.
function(headwater_judges target)
  set_target_properties(${target} PROPERTIES HEADWATER_JUDGES ON)
endfunction()

# headwater_precompile(TARGET HEADER...): what most files of a target read first, read once. Not with clang: that build shows that
# every file includes what it needs. Not headers of JSON or flags: a file that reads them precompiled generates their code, used
# or not, and takes five times as long to compile.
set(HEADWATER_PRECOMPILE OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(HEADWATER_PRECOMPILE ON)
endif()
function(headwater_precompile target)
  if(HEADWATER_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# headwater_part(NAME SOURCES... [LINK TARGETS...] [COUNTED] [PLANTED]): object library NAME and, with tests, NAME_testing.
# LINK names other parts or outside libraries; NAME_testing links the twin of each part.
# COUNTED: HEADWATER_COVERAGE counts its lines (as shipped; everything else is compiled as ever, and comes from the
# compiler's cache).
# PLANTED: NAME_testing is compiled from copies of the sources that have the faults of conformance/saboteurs.json in them.
function(headwater_part name)
  cmake_parse_arguments(ARG "COUNTED;PLANTED" "" "SOURCES;LINK;OPTIONS" ${ARGN})
  set(variants ${name})
  if(HEADWATER_TESTS)
    list(APPEND variants ${name}_testing)
  endif()
  foreach(variant IN LISTS variants)
    add_library(${variant} OBJECT)
    target_include_directories(${variant} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${variant} PUBLIC headwater_api PRIVATE headwater_flags)
    target_compile_options(${variant} PRIVATE ${ARG_OPTIONS})
    foreach(dependency IN LISTS ARG_LINK)
      if(variant STREQUAL "${name}_testing" AND TARGET ${dependency}_testing)
        target_link_libraries(${variant} PRIVATE ${dependency}_testing)
      else()
        target_link_libraries(${variant} PRIVATE ${dependency})
      endif()
    endforeach()
  endforeach()
  target_sources(${name} PRIVATE ${ARG_SOURCES})
  if(HEADWATER_TESTS)
    set(testing_sources ${ARG_SOURCES})
    if(ARG_PLANTED)
      set(folder "${CMAKE_CURRENT_BINARY_DIR}/planted")
      file(MAKE_DIRECTORY "${folder}")
      set(originals ${ARG_SOURCES})
      list(TRANSFORM originals PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
      list(TRANSFORM testing_sources PREPEND "${folder}/")
      set(script "${PROJECT_SOURCE_DIR}/conformance/plant_faults.py")
      set(table "${PROJECT_SOURCE_DIR}/conformance/saboteurs.json")
      find_program(HEADWATER_PYTHON NAMES python3 HINTS /usr/bin REQUIRED NO_CMAKE_ENVIRONMENT_PATH)
      add_custom_command(OUTPUT ${testing_sources}
        COMMAND "${HEADWATER_PYTHON}" -B "${script}" --table "${table}" --out "${folder}" ${originals}
        DEPENDS "${script}" "${table}" ${originals}
        COMMENT "Planting the faults of ${name}_testing" VERBATIM)
    endif()
    target_sources(${name}_testing PRIVATE ${testing_sources})
    target_compile_definitions(${name}_testing PRIVATE HEADWATER_TESTING)
    set_target_properties(${name}_testing PROPERTIES UNITY_BUILD ON)
  endif()
  if(ARG_COUNTED AND HEADWATER_COVERAGE)
    target_compile_options(${name} PRIVATE -O1 -g1 --coverage -fprofile-update=atomic)
  endif()
endfunction()

# What runs and tests spend their time in. Sanitizers' builds are -O1: this is what their tests wait for.
set(HEADWATER_HOT $<$<CONFIG:Release>:-O3> $<$<CONFIG:RelWithDebInfo>:-O2>)

# Files of the kit's second oracle.
set(HEADWATER_EIGEN_ORACLE eigen_oracle.cpp products.cpp products_avx2.cpp products_avx512.cpp products_baseline.cpp)

# headwater_kit_objects(NAME [JUDGES] FILE...): compiled files of the conformance kit for a target that needs a part of it.
# With JUDGES all of them are of headwater_kit_judges, and the target does not wait for the rest of the kit. Without tests
# there is no kit, and the target compiles them itself.
function(headwater_kit_objects name)
  cmake_parse_arguments(ARG "JUDGES" "" "" ${ARGN})
  set(files ${ARG_UNPARSED_ARGUMENTS})
  if(HEADWATER_TESTS)
    list(JOIN files "|" files)
    target_sources(${name} PRIVATE "$<FILTER:$<TARGET_OBJECTS:headwater_kit_judges>,INCLUDE,/(${files})[.]o(bj)?$>")
    if(NOT ARG_JUDGES)
      target_sources(${name} PRIVATE "$<FILTER:$<TARGET_OBJECTS:headwater_kit>,INCLUDE,/(${files})[.]o(bj)?$>")
    endif()
  else()
    list(TRANSFORM files PREPEND "${PROJECT_SOURCE_DIR}/conformance/")
    target_sources(${name} PRIVATE ${files})
  endif()
endfunction()

# A sanitizer build tests what is shipped. Its testing twins are left out of `all`: faults and hooks are tested in the
# release build.
function(headwater_leave_out_twins)
  if(NOT HEADWATER_SANITIZE)
    return()
  endif()
  foreach(name IN ITEMS headwater_reference headwater_core headwater_cpu headwater_cuda headwater_bindings headwater
                        headwater-conformance)
    foreach(twin IN ITEMS ${name}_testing ${name}-testing)
      if(TARGET ${twin})
        set_target_properties(${twin} PROPERTIES EXCLUDE_FROM_ALL ON)
      endif()
    endforeach()
  endforeach()
endfunction()
