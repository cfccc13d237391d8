#include "allowance.h"

#include <ggml.h>

#include <cstdlib>
#include <new>
#include <string_view>

namespace token_trie::test {

thread_local long allowance = -1;

bool may_run_out_in_passes() { return std::string_view(ggml_version()).substr(0, 5) != "0.15."; }

}  // namespace token_trie::test

namespace {

void * allocate(std::size_t n) noexcept {
    long & left = token_trie::test::allowance;
    if (left == 0) {
        return nullptr;
    }
    left -= left > 0 ? 1 : 0;
    return std::malloc(n == 0 ? 1 : n);
}

}  // namespace

// gcc sees free() behind the one and not malloc() behind the other.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void * operator new(std::size_t n) {
    void * p = allocate(n);
    if (p == nullptr) {
        throw std::bad_alloc();
    }
    return p;
}
void * operator new(std::size_t n, const std::nothrow_t & /*tag*/) noexcept { return allocate(n); }
void operator delete(void * p) noexcept { std::free(p); }
void operator delete(void * p, std::size_t /*n*/) noexcept { std::free(p); }
void operator delete(void * p, const std::nothrow_t & /*tag*/) noexcept { std::free(p); }
