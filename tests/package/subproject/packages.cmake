# Read before the project (CMAKE_PROJECT_TOP_LEVEL_INCLUDES): it may look for packages that the
# expression PACKAGES matches, and no others.
macro(refuse_other_packages method package)
  if(NOT "${package}" MATCHES "^(${PACKAGES})$")
    message(SEND_ERROR "headwater looks for the package ${package}; allowed here: ${PACKAGES}")
  endif()
endmacro()
cmake_language(SET_DEPENDENCY_PROVIDER refuse_other_packages SUPPORTED_METHODS FIND_PACKAGE)
