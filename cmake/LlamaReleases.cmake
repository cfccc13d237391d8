# add_llama_headers(target source ggml): a llama.cpp of which only the headers are there, in the unpacked sdist of a
# llama-cpp-python, for a wheel. What is linked are empty libraries of the names that llama-cpp-python's have; the loader
# finds those in the process by then, and the symbols in them. ggml: variable that takes
# what the library will report: its version, and its commit where the file COMMIT has that.

function(add_llama_headers target source ggml)
  set(llama_cpp ${source}/vendor/llama.cpp)
  if(NOT EXISTS ${llama_cpp}/include/llama.h)
    message(FATAL_ERROR "${source}: not the unpacked sdist of a llama-cpp-python: it has no vendor/llama.cpp/include/llama.h")
  endif()
  file(STRINGS ${llama_cpp}/ggml/CMakeLists.txt lines REGEX "set\\(GGML_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+\\)")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers "." version)
  if(NOT version MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
    message(FATAL_ERROR "${llama_cpp}/ggml/CMakeLists.txt: no version of ggml is read there")
  endif()
  if(EXISTS ${source}/COMMIT)
    file(STRINGS ${source}/COMMIT commit REGEX "^[0-9a-f]+$")
  endif()
  if(commit)
    set(${ggml} "${version} (${commit})" PARENT_SCOPE)
  else()
    set(${ggml} ${version} PARENT_SCOPE)
  endif()
  list(GET numbers 0 ggml_major)

  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${llama_cpp}/include ${llama_cpp}/ggml/include)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/nothing.c "void token_trie_nothing(void);\nvoid token_trie_nothing(void) {}\n")
  foreach(name llama ggml ggml-base)
    set(stub ${target}_${name})
    add_library(${stub} SHARED ${CMAKE_CURRENT_BINARY_DIR}/nothing.c)
    set_target_properties(${stub} PROPERTIES
      OUTPUT_NAME ${name} SOVERSION ${ggml_major}
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/stubs/${target}
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/stubs/${target})
    target_link_libraries(${target} INTERFACE ${stub})
  endforeach()
  if(APPLE)
    target_link_options(${target} INTERFACE LINKER:-undefined,dynamic_lookup)
  elseif(UNIX)
    target_link_options(${target} INTERFACE LINKER:--no-as-needed)
  endif()
endfunction()
