# Included by each project() of llama.cpp's tree (build_programs.py), to build its programs in minutes: ggml is optimised, the rest,
# which takes little of the time of a run, is not.
if(PROJECT_NAME STREQUAL "ggml")
  string(REPLACE "-O0" "-O3" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
elseif(PROJECT_NAME STREQUAL "llama.cpp")
  # The short files of the models share one long header: twenty of them in one pass. Those with names in common stay alone.
  function(headwater_join_models)
    get_target_property(alone llama SOURCES)
    list(FILTER alone EXCLUDE REGEX "models/[^d][^/]*\\.cpp$")
    set_source_files_properties(${alone} TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)
  endfunction()
  cmake_language(DEFER CALL headwater_join_models)
endif()
