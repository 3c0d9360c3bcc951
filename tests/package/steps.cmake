# What run.cmake and subproject.cmake have in common: a step must succeed.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nfailed (${status}):\n${output}${errors}")
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
