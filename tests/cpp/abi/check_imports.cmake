# cmake -DNM=<nm> -DLIBRARY=<libtoken_trie.so> -P check_imports.cmake
#
# Fails if the library imports anything that prints or ends the process. Formatting into memory (snprintf) is neither.

cmake_minimum_required(VERSION 3.21)

execute_process(COMMAND ${NM} --dynamic --undefined-only --format=posix ${LIBRARY}
  OUTPUT_VARIABLE output RESULT_VARIABLE failed)
string(REGEX MATCHALL "[^\n]+" lines "${output}")
list(TRANSFORM lines REPLACE "[@ ].*" "")
if(failed OR NOT "llama_sampler_init" IN_LIST lines)
  message(FATAL_ERROR "${NM} did not list the imports of ${LIBRARY}")
endif()

set(ends abort exit _exit _Exit quick_exit raise kill __assert_fail __assert_rtn _ZSt21__glibcxx_assert_failPKciS0_S0_)
set(prints puts putchar putc fputs fputc fwrite perror write stdout stderr _ZSt4cout _ZSt4cerr _ZSt4clog)
foreach(name IN LISTS lines)
  if(name IN_LIST ends OR name IN_LIST prints OR name MATCHES "^(__)?v?[fd]?printf(_chk)?$")
    list(APPEND banned ${name})
  endif()
endforeach()
if(banned)
  message(FATAL_ERROR "${LIBRARY} imports what library code must not use: ${banned}")
endif()
