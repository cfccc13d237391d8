# nlohmann-json's headers, from its CMake package or from the PyPI package nlohmann-json.

find_package(nlohmann_json CONFIG QUIET)
if(NOT TARGET nlohmann_json::nlohmann_json)
  set(interpreter "${Python_EXECUTABLE}")
  if(NOT interpreter)
    set(interpreter "${Llama_PYTHON}")
  endif()
  execute_process(
    COMMAND ${interpreter} -c "import nlohmann_json, pathlib; print(pathlib.Path(nlohmann_json.__file__).parent.as_posix())"
    OUTPUT_VARIABLE NlohmannJson_package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp HINTS ${NlohmannJson_package}/include)
  include(FindPackageHandleStandardArgs)
  find_package_handle_standard_args(NlohmannJson REQUIRED_VARS NlohmannJson_INCLUDE_DIR
    REASON_FAILURE_MESSAGE "pip install nlohmann-json, or your system's package (Debian: nlohmann-json3-dev)")
  if(NlohmannJson_FOUND)
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
    target_include_directories(nlohmann_json::nlohmann_json SYSTEM INTERFACE ${NlohmannJson_INCLUDE_DIR})
  endif()
endif()
