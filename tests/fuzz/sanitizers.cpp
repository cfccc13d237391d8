// Where the sanitizers of a fuzzer part from their defaults: memory that was freed is kept back for a moment only, and
// where it was allocated is not noted, for twice the executions. ASAN_OPTIONS=malloc_context_size=20 tells it of a
// finding.
extern "C" const char * __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char * __asan_default_options() { return "quarantine_size_mb=1:malloc_context_size=0"; }
