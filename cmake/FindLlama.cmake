# Finds the llama.cpp inside an installed llama-cpp-python and makes the target `llama`.
#
#   Llama_PYTHON         interpreter whose site-packages are looked into (default: Python_EXECUTABLE, else python3)
#   Llama_SITE_PACKAGES  or that directory itself
#
# The library that the process uses stands under llama_cpp/lib. The wheel leaves a second copy under lib/, which must
# never be linked, or two llama.cpp would live in one process.

if(NOT Llama_SITE_PACKAGES)
  if(NOT Llama_PYTHON)
    set(Llama_PYTHON "${Python_EXECUTABLE}")
  endif()
  if(NOT Llama_PYTHON)
    find_program(Llama_PYTHON NAMES python3 python)
  endif()
  # -I: the site-packages that programs will run with, also where an isolated build hides them; then whatever is there.
  foreach(flags "-I" "-s")
    execute_process(
      COMMAND ${Llama_PYTHON} ${flags} -c
        "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('llama_cpp').origin).parents[1].as_posix())"
      OUTPUT_VARIABLE Llama_SITE_PACKAGES OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(Llama_SITE_PACKAGES)
      break()
    endif()
  endforeach()
endif()

find_path(Llama_INCLUDE_DIR llama.h
  PATHS ${Llama_SITE_PACKAGES}/include ${Llama_SITE_PACKAGES}/llama_cpp/include NO_DEFAULT_PATH)
find_library(Llama_LIBRARY llama PATHS ${Llama_SITE_PACKAGES}/llama_cpp/lib NO_DEFAULT_PATH)
find_library(Llama_GGML_LIBRARY ggml PATHS ${Llama_SITE_PACKAGES}/llama_cpp/lib NO_DEFAULT_PATH)
find_library(Llama_GGML_BASE_LIBRARY ggml-base PATHS ${Llama_SITE_PACKAGES}/llama_cpp/lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Llama
  REQUIRED_VARS Llama_LIBRARY Llama_GGML_LIBRARY Llama_GGML_BASE_LIBRARY Llama_INCLUDE_DIR
  REASON_FAILURE_MESSAGE
    "llama-cpp-python is not installed for ${Llama_PYTHON}: pip install llama-cpp-python, or name its interpreter with -DLlama_PYTHON=")

if(Llama_FOUND AND NOT TARGET llama)
  add_library(llama INTERFACE IMPORTED)
  target_include_directories(llama INTERFACE ${Llama_INCLUDE_DIR})
  get_filename_component(Llama_LIBRARY_DIR ${Llama_LIBRARY} DIRECTORY)
  target_link_libraries(llama INTERFACE ${Llama_LIBRARY} ${Llama_GGML_LIBRARY} ${Llama_GGML_BASE_LIBRARY})
  if(NOT APPLE)
    target_link_options(llama INTERFACE "LINKER:-rpath-link,${Llama_LIBRARY_DIR}")
  endif()
endif()
