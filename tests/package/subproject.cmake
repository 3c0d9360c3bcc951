# Headwater as a part of another project, by add_subdirectory and by FetchContent: the library alone, unless options
# add more. What is compiled has the flags of the release build, and the folders lie beside that build's: then the compiler's
# cache has all objects of the library, also where it takes paths relative to the folder (base_dir of ccache).

cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

# configure(WAY PACKAGES ARGUMENT...): in BUILD_DIR-WAY, by packages that match PACKAGES.
function(configure way packages)
  run(${CMAKE_COMMAND} -S "${SOURCE_DIR}/subproject" -B "${BUILD_DIR}-${way}" -G "${GENERATOR}"
    "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_C_COMPILER_LAUNCHER=${LAUNCHER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DHEADWATER_CUDA=OFF "-DWAY=${way}" "-DHEADWATER=${HEADWATER}"
    "-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=${SOURCE_DIR}/subproject/packages.cmake" "-DPACKAGES=${packages}" ${ARGN})
endfunction()

function(build_and_run way)
  run(${CMAKE_COMMAND} --build "${BUILD_DIR}-${way}")
  foreach(program IN ITEMS cpp_headwater cpp_headwater_shared c_headwater c_headwater_shared)
    run_consumer("${BUILD_DIR}-${way}/${program}")
  endforeach()
endfunction()

# install_into(WAY): BUILD_DIR-WAY/installed; `files` are what lies there.
function(install_into way)
  set(prefix "${BUILD_DIR}-${way}/installed")
  run(${CMAKE_COMMAND} --install "${BUILD_DIR}-${way}" --prefix "${prefix}")
  file(GLOB_RECURSE files RELATIVE "${prefix}" "${prefix}/*")
  set(files "${files}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${BUILD_DIR}-add_subdirectory" "${BUILD_DIR}-FetchContent")

# With the defaults of all options.
configure(add_subdirectory "Threads|OpenMP|nlohmann_json")
file(READ "${BUILD_DIR}-add_subdirectory/compile_commands.json" database)
string(JSON count LENGTH "${database}")
math(EXPR last "${count} - 1")
set(ours 0)
foreach(i RANGE ${last})
  string(JSON file GET "${database}" ${i} file)
  string(JSON command GET "${database}" ${i} command)
  if(file MATCHES "/tests/package/consumer\\.c")
    if(command MATCHES " (-W|-f(openmp|fp)|-march)")
      message(FATAL_ERROR "a consumer is compiled with flags of headwater: ${command}")
    endif()
  else()
    math(EXPR ours "${ours} + 1")
    if(command MATCHES "-Werror" OR NOT command MATCHES "-ffp-contract=off")
      message(FATAL_ERROR "a source of headwater is compiled with -Werror, or without -ffp-contract=off: ${command}")
    endif()
  endif()
endforeach()
if(ours EQUAL 0)
  message(FATAL_ERROR "compile_commands.json names no source of headwater")
endif()
configure(add_subdirectory "Threads|OpenMP|nlohmann_json" -DHEADWATER_WERROR=ON)
build_and_run(add_subdirectory)
install_into(add_subdirectory)
if(files)
  message(FATAL_ERROR "installed without being asked to: ${files}")
endif()

# Installed where the option says so.
set(fetched -DFETCHCONTENT_FULLY_DISCONNECTED=ON "-DFETCHCONTENT_SOURCE_DIR_HEADWATER=${HEADWATER}"
  -DHEADWATER_INSTALL=ON -DCMAKE_INSTALL_LIBDIR=lib -DHEADWATER_WERROR=ON)
configure(FetchContent "Threads|OpenMP|nlohmann_json" ${fetched})
build_and_run(FetchContent)
install_into(FetchContent)
foreach(wanted IN ITEMS include/headwater/headwater.hpp lib/libheadwater.a lib/libheadwater.so
                        lib/cmake/headwater/headwaterConfig.cmake)
  if(NOT wanted IN_LIST files)
    message(FATAL_ERROR "${wanted} is not installed: ${files}")
  endif()
endforeach()

# The model runtime has a target, too; compiling it would take minutes.
if(RUNTIME)
  configure(FetchContent "Threads|OpenMP|nlohmann_json|fmt" ${fetched} -DHEADWATER_RUNTIME=ON)
endif()
