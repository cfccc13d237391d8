# What Python's package holds: under builds/, for each llama.cpp, named by the version and commit of its ggml, the engine and
# the extension module that binds it, and under builds/none the two without a llama.cpp. Python loads the one that fits:
# token_trie/native/core.py.
#
#   builds/0.25.3-0c1e570/   libtoken_trie.so   _core.*.so   _abi.py
#   builds/none/             libtoken_trie.so   _core.*.so   _abi.py     sets, matchers, masks and tensors

find_package(pybind11 CONFIG REQUIRED)
set(install_include token_trie/include)
set(install_cmake token_trie/cmake)
include(GgmlVersion)

# The bindings see none of llama.cpp's headers.
add_library(token_trie_bindings OBJECT
  csrc/bindings/register_trie.cpp
  csrc/bindings/register_llama.cpp
  csrc/bindings/register_matcher.cpp)
set_up(token_trie_bindings)
target_link_libraries(token_trie_bindings PRIVATE pybind11::module pybind11::lto)

# The header for cffi.
set(abi ${CMAKE_CURRENT_BINARY_DIR}/_abi.py)
add_custom_command(OUTPUT ${abi}
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/declarations.py
    ${CMAKE_CURRENT_SOURCE_DIR}/include/token_trie.h ${abi}
  DEPENDS cmake/declarations.py include/token_trie.h)
add_custom_target(token_trie_abi ALL DEPENDS ${abi})

function(add_build name engine)
  set(core _core_${name})
  pybind11_add_module(${core} csrc/bindings/module.cpp $<TARGET_OBJECTS:token_trie_bindings>)
  target_link_libraries(${core} PRIVATE ${engine})
  target_include_directories(${core} PRIVATE csrc)
  set(directory ${CMAKE_CURRENT_BINARY_DIR}/builds/${name})
  set_target_properties(${core} PROPERTIES
    OUTPUT_NAME _core LIBRARY_OUTPUT_DIRECTORY ${directory} INSTALL_RPATH "$ORIGIN")
  # Where llama_cpp stands beside this package. It is loaded before in any case, from wherever it is.
  set_target_properties(${engine} PROPERTIES
    OUTPUT_NAME token_trie LIBRARY_OUTPUT_DIRECTORY ${directory} RUNTIME_OUTPUT_DIRECTORY ${directory}
    INSTALL_RPATH "$ORIGIN/../../../llama_cpp/lib")
  install(TARGETS ${engine} ${core}
    LIBRARY DESTINATION token_trie/builds/${name}
    RUNTIME DESTINATION token_trie/builds/${name})
  install(FILES ${abi} DESTINATION token_trie/builds/${name})
endfunction()

add_library(token_trie_none SHARED $<TARGET_OBJECTS:token_trie_sets> csrc/bindings/without_llama.cpp)
set_up(token_trie_none)
add_build(none token_trie_none)

if(TOKEN_TRIE_HEADERS)
  include(LlamaReleases)
  get_filename_component(headers ${TOKEN_TRIE_HEADERS} ABSOLUTE)
  file(GLOB releases RELATIVE ${headers} CONFIGURE_DEPENDS ${headers}/*)
  if(NOT releases)
    message(FATAL_ERROR "TOKEN_TRIE_HEADERS: ${headers} holds no release; scripts/wheel headers fetches them")
  endif()
  foreach(release IN LISTS releases)
    add_llama_headers(llama_${release} ${headers}/${release} ggml)
    ggml_build(name "${ggml}")
    add_token_trie(token_trie_${name} llama_${release} "${ggml}")
    add_build(${name} token_trie_${name})
  endforeach()
else()
  ggml_build(name "${TOKEN_TRIE_GGML_COMPILED}")
  add_token_trie(token_trie_${name} llama "${TOKEN_TRIE_GGML_COMPILED}")
  add_build(${name} token_trie_${name})
endif()
