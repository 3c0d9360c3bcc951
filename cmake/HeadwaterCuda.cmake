# Finds a CUDA toolkit that works and compiles kernels with it. Without one the build says so in one line and goes on.
#
# HEADWATER_CUDA_FOUND      engine `cuda`, its kernels and the Device of GPUs are built
# HEADWATER_CUDA_REASON     else: why not, one line
# headwater_cudart          the CUDA runtime, static, and its headers
# headwater_cuda_object(SOURCE ARCHITECTURES...)
#                           compiles a source of kernels; its object and what ptxas said about it, the global property
#                           HEADWATER_CUDA_LOGS, lie beside it
# headwater_link_cuda(TARGET)
#                           gives a library the kernels and the Device of GPUs

set(HEADWATER_CUDA_FOUND FALSE)

if(NOT HEADWATER_CUDA)
  set(HEADWATER_CUDA_REASON "HEADWATER_CUDA is off")
elseif(HEADWATER_CUDA STREQUAL "AUTO" AND NOT EXISTS /dev/nvidiactl)
  # A driver makes that file. Whoever has no GPU does not wait for nvcc.
  set(HEADWATER_CUDA_REASON "this machine has no NVIDIA GPU; HEADWATER_CUDA=ON builds it all the same")
elseif(HEADWATER_SANITIZE OR NOT CMAKE_BUILD_TYPE STREQUAL "Release" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(HEADWATER_CUDA_REASON "only the release build with g++ compiles them")
else()
  find_program(HEADWATER_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT HEADWATER_NVCC)
    set(HEADWATER_CUDA_REASON "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
  else()
    # One kernel, once: a toolkit may be there in part, or refuse this g++.
    if(NOT "${HEADWATER_CUDA_TRIED}" STREQUAL "${HEADWATER_NVCC}")
      set(probe "${PROJECT_BINARY_DIR}/cuda/probe")
      file(MAKE_DIRECTORY "${probe}")
      file(WRITE "${probe}/probe.cu" "#include <cuda_runtime.h>\n#include <bit>\n__global__ void probe(int* x) { *x = 1; }\n")
      execute_process(
        COMMAND "${HEADWATER_NVCC}" -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}" -gencode=arch=compute_90a,code=sm_90a
                -v -c probe.cu -o probe.o
        WORKING_DIRECTORY "${probe}" RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
      string(REGEX MATCH "#\\$ _?TOP=([^\n]+)" top "${said}")
      set(top "${CMAKE_MATCH_1}")
      set(HEADWATER_CUDA_TRIED "${HEADWATER_NVCC}" CACHE INTERNAL "")
      set(HEADWATER_CUDA_PROBE "${failed}" CACHE INTERNAL "")
      if(top AND NOT IS_ABSOLUTE "${top}")
        get_filename_component(top "${probe}/${top}" ABSOLUTE)
      endif()
      set(HEADWATER_CUDA_TOP "${top}" CACHE INTERNAL "")
    endif()
    find_library(HEADWATER_CUDART cudart_static HINTS "${HEADWATER_CUDA_TOP}" PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
    find_path(HEADWATER_CUDA_INCLUDE cuda_runtime.h HINTS "${HEADWATER_CUDA_TOP}" PATH_SUFFIXES include
              targets/x86_64-linux/include)
    if(NOT HEADWATER_CUDA_PROBE STREQUAL "0")
      set(HEADWATER_CUDA_REASON "${HEADWATER_NVCC} cannot compile C++20 for sm_90a with this g++")
    elseif(NOT HEADWATER_CUDART OR NOT HEADWATER_CUDA_INCLUDE)
      set(HEADWATER_CUDA_REASON "${HEADWATER_NVCC} has no cuda_runtime.h or libcudart_static.a beside it")
    else()
      set(HEADWATER_CUDA_FOUND TRUE)
    endif()
  endif()
endif()

if(NOT HEADWATER_CUDA_FOUND)
  message(STATUS "CUDA: no engine cuda in this build: ${HEADWATER_CUDA_REASON}")
  if(HEADWATER_CUDA STREQUAL "REQUIRED")
    message(FATAL_ERROR "HEADWATER_CUDA is REQUIRED")
  endif()
  return()
endif()
message(STATUS "CUDA: engine cuda, its kernels compiled by ${HEADWATER_NVCC}")

# What the runtime needs besides itself. It opens the driver when it is first asked for a device, and lives without one.
set(HEADWATER_CUDART_NEEDS rt ${CMAKE_DL_LIBS})
add_library(headwater_cudart INTERFACE)
target_include_directories(headwater_cudart SYSTEM INTERFACE "${HEADWATER_CUDA_INCLUDE}")
target_link_libraries(headwater_cudart INTERFACE "${HEADWATER_CUDART}" Threads::Threads ${HEADWATER_CUDART_NEEDS})

# headwater_link_cuda(TARGET): everything of engine `cuda` that is no part of the project's own (headwater_part).
function(headwater_link_cuda target)
  get_property(objects GLOBAL PROPERTY HEADWATER_CUDA_OBJECTS)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:headwater_cuda_gpu> ${objects})
  get_property(kernels GLOBAL PROPERTY HEADWATER_CUDA_KERNELS)
  add_dependencies(${target} ${kernels})
endfunction()

# Warnings are errors, of ptxas too, and a spilled register is a warning. PIC and hidden names as everywhere else. Machine
# code is compressed, to an eighth: every program that links the library carries it.
set(HEADWATER_NVCC_FLAGS
  -std=c++20 -O3 -ccbin "${CMAKE_CXX_COMPILER}" -lineinfo --expt-relaxed-constexpr -Xfatbin=-compress-all
  -Xptxas -v,--warn-on-spills -Werror all-warnings
  -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-march=x86-64-v2
  "-I${PROJECT_SOURCE_DIR}/optimized" "-I${PROJECT_SOURCE_DIR}/include")

function(headwater_cuda_object source)
  set(targets "")
  foreach(architecture IN LISTS ARGN)
    string(REPLACE "sm_" "compute_" virtual "${architecture}")
    list(APPEND targets "-gencode=arch=${virtual},code=${architecture}")
  endforeach()
  get_filename_component(name "${source}" NAME_WE)
  set(object "${source}.o")
  set(log "${source}.ptxas")
  add_custom_command(
    OUTPUT "${object}" "${log}"
    COMMAND sh "${PROJECT_SOURCE_DIR}/cmake/nvcc_log.sh" "${log}" ${CMAKE_CXX_COMPILER_LAUNCHER}
            "${HEADWATER_NVCC}" ${HEADWATER_NVCC_FLAGS} ${targets} -MD -MF "${object}.d" -c "${source}" -o "${object}"
    DEPENDS "${source}" "${PROJECT_SOURCE_DIR}/cmake/nvcc_log.sh"
    DEPFILE "${object}.d"
    COMMENT "nvcc ${name}"
    VERBATIM)
  add_custom_target(headwater_cuda_${name} ALL DEPENDS "${object}")
  set_property(GLOBAL APPEND PROPERTY HEADWATER_CUDA_LOGS "${log}")
  set_property(GLOBAL APPEND PROPERTY HEADWATER_CUDA_OBJECTS "${object}")
  set_property(GLOBAL APPEND PROPERTY HEADWATER_CUDA_KERNELS headwater_cuda_${name})
endfunction()
