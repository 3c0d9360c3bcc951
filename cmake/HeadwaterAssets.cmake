# headwater_bytes(VARIABLE FILE...): the bytes of the files, one after the other, as a C++ initialiser list. A file
# that changes configures anew.
function(headwater_bytes variable)
  set(all "")
  foreach(file IN LISTS ARGN)
    file(READ "${file}" hex HEX)
    string(APPEND all "${hex}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  endforeach()
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," all "${all}")
  # At most so many bytes in a line.
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" all
         "${all}")
  set(${variable} "${all}" PARENT_SCOPE)
endfunction()
