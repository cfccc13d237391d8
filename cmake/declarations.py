"""Write what the C header declares as a module for cffi, which then parses no C at import: HEADER MODULE."""

import re
import sys
from pathlib import Path

import cffi

header, module = map(Path, sys.argv[1:])
text = re.sub(r"#ifdef __cplusplus\n.*?#endif", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.MULTILINE)
ffi = cffi.FFI()
ffi.set_source("token_trie._abi", None)
ffi.cdef(text.replace("TOKEN_TRIE_API ", ""))
ffi.emit_python_code(str(module))
