# cmake -DFOLDER=... -DPROGRAMS=a,b -P take_libraries.cmake: copies what the programs of a folder load, but for glibc, into
# FOLDER/gpu-libraries, where their run path finds it.
string(REPLACE "," ";" programs "${PROGRAMS}")
list(TRANSFORM programs PREPEND "${FOLDER}/")
# What an earlier run copied stands in that path and would be found beside the system's.
file(REMOVE_RECURSE "${FOLDER}/gpu-libraries")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} RESOLVED_DEPENDENCIES_VAR libraries
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so")
file(MAKE_DIRECTORY "${FOLDER}/gpu-libraries")
foreach(library IN LISTS libraries)
  get_filename_component(name "${library}" NAME)
  file(REAL_PATH "${library}" file)
  file(COPY_FILE "${file}" "${FOLDER}/gpu-libraries/${name}")
endforeach()
