# Sets TOKEN_TRIE_GGML_COMPILED to version and commit of the ggml linked, "0.9.4 (a1b2c3d)", to be compared at run time
# with the one loaded; empty where the surrounding project builds llama.cpp itself, so that the two cannot differ.
#
# ggml_build(out ggml): name of the build for a ggml, "0.9.4-a1b2c3d"; "0.9.4" where the commit is not known.

function(ggml_build out ggml)
  string(REGEX MATCH "^[0-9.]+" version "${ggml}")
  string(REGEX MATCH "[(][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]" commit "${ggml}")
  string(REPLACE "(" "-" commit "${commit}")
  set(${out} "${version}${commit}" PARENT_SCOPE)
endfunction()

if(Llama_GGML_BASE_LIBRARY)
  unset(ran CACHE)  # there may be another library since
  unset(compiled CACHE)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("CXX" IN_LIST languages)
    set(extension cpp)
  else()
    set(extension c)
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/ggml_version.${extension})
  file(WRITE ${source}
    "#include <stdio.h>\n#ifdef __cplusplus\nextern \"C\"\n#endif\nconst char *ggml_version(void), *ggml_commit(void);\n"
    "int main(void) { printf(\"%s (%s)\", ggml_version(), ggml_commit()); return 0; }\n")
  try_run(ran compiled ${CMAKE_CURRENT_BINARY_DIR}/ggml_version ${source}
    LINK_LIBRARIES ${Llama_GGML_BASE_LIBRARY}
    RUN_OUTPUT_VARIABLE version)
  if(NOT compiled OR NOT ran EQUAL 0)
    message(FATAL_ERROR "${Llama_GGML_BASE_LIBRARY} could not be asked for its version: "
      "token-trie needs llama-cpp-python 0.3.30 or newer")
  endif()
  set(TOKEN_TRIE_GGML_COMPILED "${version}" CACHE INTERNAL "ggml compiled against")
endif()
